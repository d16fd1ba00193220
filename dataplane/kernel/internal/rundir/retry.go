package rundir

import "time"

// MaxTries is the number of attempts at an operation that must not remain incomplete:
// the kernel may be short of memory for a moment.
const MaxTries = 3

// Retry calls f until it succeeds, at most MaxTries times.
func Retry(f func() error) (err error) {
	for try := range MaxTries {
		if err = f(); err == nil {
			return nil
		}
		time.Sleep(time.Duration(try) * 20 * time.Millisecond)
	}
	return err
}
