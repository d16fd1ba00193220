package engine

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Memory is an array map in the memory of this process. Programs and other processes read and write
// it at the same time.
type Memory[T any] struct {
	Values []T
	bytes  []byte
}

// MapMemory maps an array map into memory. The map must have the flag BPF_F_MMAPABLE, and values of
// type T, whose size is a multiple of 8 bytes. The caller must close the memory.
func MapMemory[T any](m *ebpf.Map) (Memory[T], error) {
	n, page := int(m.MaxEntries()), os.Getpagesize()
	size := (n*int(unsafe.Sizeof(*new(T))) + page - 1) &^ (page - 1)
	bytes, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return Memory[T]{}, fmt.Errorf("map %v into memory: %w", m, err)
	}
	return Memory[T]{unsafe.Slice((*T)(unsafe.Pointer(&bytes[0])), n), bytes}, nil
}

// Close unmaps the memory. Values must not be used any more. It does nothing for the zero Memory.
func (m *Memory[T]) Close() {
	if m.bytes != nil {
		_ = unix.Munmap(m.bytes)
	}
}
