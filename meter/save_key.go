package meter

import (
	"encoding"
	"encoding/binary"
	"fmt"
	"reflect"
)

// savedKey is a type of keys with a binary format of its own.
type savedKey interface {
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}

// appendKey appends the key behind a pointer.
func appendKey(b []byte, key any) ([]byte, error) {
	if k, ok := key.(savedKey); ok {
		return k.AppendBinary(b)
	}
	v := reflect.ValueOf(key).Elem()
	switch {
	case v.Kind() == reflect.String:
		return append(b, v.String()...), nil
	case v.Kind() == reflect.Int:
		return binary.LittleEndian.AppendUint64(b, uint64(v.Int())), nil
	case v.Kind() == reflect.Uint:
		return binary.LittleEndian.AppendUint64(b, v.Uint()), nil
	case fixedSize(v.Type()):
		return binary.Append(b, binary.LittleEndian, key)
	}
	return b, fmt.Errorf(
		"keys of type %v cannot be saved: implement encoding.BinaryAppender and encoding.BinaryUnmarshaler",
		v.Type())
}

// readKey sets the key behind a pointer. It reports whether the data are a key.
func readKey(data []byte, key any) bool {
	if k, ok := key.(savedKey); ok {
		return k.UnmarshalBinary(data) == nil
	}
	v := reflect.ValueOf(key).Elem()
	switch {
	case v.Kind() == reflect.String:
		v.SetString(string(data))
		return true
	case v.Kind() == reflect.Int && len(data) == 8:
		n := int64(binary.LittleEndian.Uint64(data))
		v.SetInt(n)
		return v.Int() == n
	case v.Kind() == reflect.Uint && len(data) == 8:
		n := binary.LittleEndian.Uint64(data)
		v.SetUint(n)
		return v.Uint() == n
	case fixedSize(v.Type()):
		n, err := binary.Decode(data, binary.LittleEndian, key)
		return err == nil && n == len(data)
	}
	return false
}

// fixedSize reports whether encoding/binary can read a type.
func fixedSize(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return fixedSize(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); !f.IsExported() || !fixedSize(f.Type) {
				return false
			}
		}
		return true
	case reflect.Int, reflect.Uint, reflect.Uintptr: // their size depends on the machine
		return false
	}
	return t.Kind() >= reflect.Bool && t.Kind() <= reflect.Complex128
}
