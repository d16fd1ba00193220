//go:build unix

package output

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// otherOwner returns the owner of a file, and whether it is a user other than this one or root.
func otherOwner(info os.FileInfo) (uid int, other bool) {
	uid = int(info.Sys().(*syscall.Stat_t).Uid)
	return uid, uid != 0 && uid != os.Geteuid()
}

// inherit copies the owner, the group and the mode of the file to replace, as far as permitted.
func inherit(file *os.File, old os.FileInfo) {
	mode := old.Mode().Perm()
	stat := old.Sys().(*syscall.Stat_t)
	uid, gid := int(stat.Uid), int(stat.Gid)
	if file.Chown(uid, gid) != nil && file.Chown(-1, gid) != nil {
		mode = mode&^0o070 | mode&0o007<<3 // a different group gets the permissions of others
	}
	_ = file.Chmod(mode)
}

// IsClosed reports whether err is an error of writing to a pipe closed by its reader.
func IsClosed(err error) bool { return errors.Is(err, syscall.EPIPE) }

// dieBy ends the process by a signal, which the parent process can see.
func dieBy(sig os.Signal) {
	signal.Reset(sig)
	_ = syscall.Kill(os.Getpid(), sig.(syscall.Signal))
	time.Sleep(time.Second) // the signal may arrive in another thread
}
