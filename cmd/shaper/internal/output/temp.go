package output

import (
	"crypto/rand"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
)

// temps are the temporary files of this process. They are removed if a signal ends the
// process.
var temps = struct {
	sync.Mutex
	files map[string]*os.File // by path; nil until it is open
}{files: map[string]*os.File{}}

// newTemp creates a temporary file in a directory. The name is random and the file must not
// exist, so nobody can put a link in its place.
func newTemp(dir string, mode os.FileMode) (*os.File, error) {
	removeAtHangup()
	path := filepath.Join(dir, ".shaper-"+rand.Text())
	temps.Lock()
	temps.files[path] = nil
	temps.Unlock()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		forgetTemp(path)
		return nil, err
	}
	temps.Lock()
	temps.files[path] = f
	temps.Unlock()
	return f, nil
}

// forgetTemp removes the name of a temporary file that was renamed or removed from temps.
func forgetTemp(path string) {
	temps.Lock()
	delete(temps.files, path)
	temps.Unlock()
}

// removeAtHangup handles SIGHUP, unless it is ignored, as by nohup. Commands without temporary
// files handle it themselves.
var removeAtHangup = sync.OnceFunc(func() {
	if signal.Ignored(syscall.SIGHUP) {
		return
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	go func() { Die(<-hangup) }()
})

// Die removes the temporary files and ends the process by a signal, which the parent process
// can see.
func Die(sig os.Signal) {
	temps.Lock() // not unlocked: no more files are created
	for path, f := range temps.files {
		f.Close() // Windows removes no open file
		os.Remove(path)
	}
	dieBy(sig)
	os.Exit(1)
}
