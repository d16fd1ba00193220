// Command gotest runs go test for make test and make live. It prints each package when it ends, and
// at least every 15 seconds the running tests. At the end it prints the output of failed tests, the
// reasons of skipped ones, and the line "N passed, N failed, N skipped".
//
//	gotest [-tally FILE] ARGUMENT...
//
// The arguments are those of go test. The last line is also appended to the tally's file. The exit
// code is 1 if a test failed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// interval is the time after which gotest prints a line.
const interval = 15 * time.Second

func main() {
	args := os.Args[1:]
	tally := ""
	if len(args) > 1 && args[0] == "-tally" {
		tally, args = args[1], args[2:]
	}
	code, err := run(os.Stdout, tally, interval, args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run runs go test with arguments. It returns the exit code.
func run(w io.Writer, tally string, every time.Duration, args []string) (code int, err error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	out, in, err := os.Pipe() // for both, because errors of go itself are printed in order
	if err != nil {
		return 1, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = in, in
	err = cmd.Start()
	in.Close()
	if err != nil {
		return 1, err
	}
	r := newReport(w)
	events := make(chan event)
	go read(out, events)
	ticker := time.NewTicker(every / 3)
	defer ticker.Stop()
	for open := true; open; {
		var e event
		select {
		case e, open = <-events:
			if open {
				r.add(e)
			}
		case <-ticker.C:
			if time.Since(r.printed) >= every*2/3 {
				r.beat()
			}
		}
	}
	failed := cmd.Wait() != nil
	line := r.finish(failed)
	if failed || r.failed > 0 {
		code = 1
	}
	if tally != "" {
		err = appendLine(tally, line)
	}
	return code, err
}

// event is a line of go test -json, see go doc test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// read sends the events of go test, and all other lines as output.
func read(out io.Reader, events chan<- event) {
	defer close(events)
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				e = event{Action: "output", Output: string(line)}
			}
			events <- e
		}
		if err != nil {
			return
		}
	}
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(f, line); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
