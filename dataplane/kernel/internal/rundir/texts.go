package rundir

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/a-seed-32e5a53f/shaper/dataplane/kernel/internal/iface"
)

// Texts are files mentioned in the label of a shaper, such as a large file of customers. Their
// copies in StateDir last as long as a record of the interface mentions their names, so a rollback
// finds the text of the previous policy even if its file changed.

// textPrefix is the part between the interface and the name of the text in the file name of a copy.
const textPrefix = "text-"

// TextPath returns the path of the copy of a text. The name must be unique for its content, such
// as a hash.
func TextPath(at iface.ID, name string) string {
	return filepath.Join(StateDir, at.FileName(textPrefix+name))
}

// KeepText writes the copy of a text, unless it exists. The caller must hold the change lock.
func KeepText(at iface.ID, name, text string) error {
	if FileExists(TextPath(at, name)) {
		return nil
	}
	return writeState(at.FileName(textPrefix+name), []byte(text))
}

// TextPaths returns the paths of all copies of an interface.
func TextPaths(at iface.ID) ([]string, error) { return filepath.Glob(TextPath(at, "*")) }

// PruneTexts removes copies whose names no record contains.
func PruneTexts(at iface.ID, paths []string, records [][]byte) error {
	for _, path := range paths {
		name := strings.TrimPrefix(filepath.Base(path), at.FileName(textPrefix))
		mentioned := func(record []byte) bool { return bytes.Contains(record, []byte(name)) }
		if !slices.ContainsFunc(records, mentioned) {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("copy of a text: %w", err)
			}
		}
	}
	return nil
}
