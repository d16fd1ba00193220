package kernel

import "time"

// maxTries is the number of attempts at an operation that must not remain incomplete:
// the kernel may be short of memory for a moment.
const maxTries = 3

// retry calls f until it succeeds, at most maxTries times.
func retry(f func() error) (err error) {
	for try := range maxTries {
		if err = f(); err == nil {
			return nil
		}
		time.Sleep(time.Duration(try) * 20 * time.Millisecond)
	}
	return err
}
