package kernel

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Texts are files that the label of a shaper mentions, such as a large file of customers. Their
// copies in StateDir last as long as a record of the interface mentions their names, so a
// rollback finds the text of the previous policy even if its file has changed.

// textPrefix is the prefix of the names of copies, after that of the interface.
const textPrefix = "text-"

// textPath returns the path of the copy of a text. The name must be unique for its content, such
// as a hash.
func textPath(at iface, name string) string {
	return filepath.Join(StateDir, at.fileName(textPrefix+name))
}

// keepText writes the copy of a text, unless it exists. The caller must hold the change lock.
func keepText(at iface, name, text string) error {
	if fileExists(textPath(at, name)) {
		return nil
	}
	return writeState(at.fileName(textPrefix+name), []byte(text))
}

// textPaths returns the paths of all copies of an interface.
func textPaths(at iface) ([]string, error) { return filepath.Glob(textPath(at, "*")) }

// pruneTexts removes copies whose names no record contains.
func pruneTexts(at iface, paths []string, records [][]byte) error {
	for _, path := range paths {
		name := strings.TrimPrefix(filepath.Base(path), at.fileName(textPrefix))
		mentioned := func(record []byte) bool { return bytes.Contains(record, []byte(name)) }
		if !slices.ContainsFunc(records, mentioned) {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("copy of a text: %w", err)
			}
		}
	}
	return nil
}
