package record

import (
	"encoding/base64"
	"fmt"
	"unsafe"
)

// packed is a slice whose JSON is the memory of its elements, in base64. Decoding the numbers
// of a thousand meters would take 10 ms. Elements must not contain pointers.
type packed[T any] []T

// memory returns the memory of the elements.
func (p packed[T]) memory() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(p))), len(p)*int(unsafe.Sizeof(*new(T))))
}

func (p packed[T]) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, p.memory()), nil
}

func (p *packed[T]) UnmarshalText(text []byte) error {
	memory, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil {
		return err
	}
	size := int(unsafe.Sizeof(*new(T)))
	if len(memory)%size != 0 {
		return fmt.Errorf("%d bytes are not a number of elements of %d bytes", len(memory), size)
	}
	*p = make(packed[T], len(memory)/size)
	copy(p.memory(), memory)
	return nil
}
