package image

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestQueueSchedules compiles admit of queue.h for this process. It runs all schedules with one or two
// preemptions of CPUs that enqueue at once, also with rings so short that a CPU can be overtaken by a
// whole lap. No packet may be dropped that had room, and a CPU may miss at most one packet of each other
// CPU.
func TestQueueSchedules(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is missing: apt-get install gcc libbpf-dev")
	}
	program := filepath.Join(t.TempDir(), "schedules")
	out, err := exec.Command("gcc", "-O1", "-Wall", "-Wno-unused", "-I../../../../bpf/src", "-o", program,
		"testdata/queue_schedules.c").CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	for _, test := range []struct {
		cpus, packets, preemptions, spare int
		// rooms: packets that may be admitted before the queue is full again
		capacities, rooms []int
	}{
		{2, 2, 2, ringSpare, []int{1, 2, 3}, []int{0, 1, 2}},
		{3, 1, 2, ringSpare, []int{1, 3}, []int{1, 2}},
		{2, 3, 2, 1, []int{3}, []int{1, 2}},
		{2, 12, 1, 2, []int{14}, []int{14}}, // a CPU is overtaken by 12 packets
	} {
		for _, capacity := range test.capacities {
			for _, room := range test.rooms {
				for _, between := range []int{0, 500, 1000} { // a packet takes 1000 ns
					const laps = 2
					args := strings.Fields(fmt.Sprint(capacity, ringSize(capacity, test.spare)-1, test.cpus,
						test.packets, test.preemptions, between, laps, room))
					out, err := exec.Command(program, args...).CombinedOutput()
					var schedules, spurious, missed int
					if _, scanErr := fmt.Sscan(string(out), &schedules, &spurious, &missed); err != nil ||
						scanErr != nil {
						t.Fatalf("%q: %v, %v: %s", args, err, scanErr, out)
					}
					if schedules < 100 || spurious > 0 || missed > test.cpus-1 {
						t.Errorf("%+v, capacity %d, room %d, %d ns between packets: in %d schedules %d drops of packets that had room, a backlog of %d above the capacity: "+
							"want none, and at most %d", test, capacity, room, between, schedules, spurious, missed, test.cpus-1)
					}
				}
			}
		}
	}
}
