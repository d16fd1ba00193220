package replay

import "math/bits"

// held are copies of the records of packets not yet settled by the engine.
type held struct {
	pages      map[int64]*page // by packet number / pageSize
	sparePages []*page         // for reuse
	spare      [256][][]byte   // memory for reuse, by index of sizeClass
}

// page holds the records of packets with consecutive numbers. A map from each number would take
// twice the time.
type page struct {
	records [pageSize]heldRecord // by packet number % pageSize
	used    int
}

const pageSize = 32

type heldRecord struct {
	raw        []byte // nil if there is none
	fcsCorrect bool   // as in record
	shift      int64  // as in dataplane.Packet
}

// sizeClass rounds n up, by less than a sixteenth or 32. It returns the rounded size and its index
// among all sizes.
func sizeClass(n int) (index, size int) {
	shift := max(bits.Len(uint(n-1))-5, 5)
	units := (n-1)>>shift + 1
	return (shift-5)*16 + units, units << shift
}

// blockSize is the memory allocated at once, bytes. The Go runtime would round up each small buffer.
const blockSize = 32 << 10

// put copies the record of a packet.
func (h *held) put(number int64, rec *record) {
	p := h.pages[number/pageSize]
	if p == nil {
		if n := len(h.sparePages); n > 0 {
			p, h.sparePages = h.sparePages[n-1], h.sparePages[:n-1]
		} else {
			p = new(page)
		}
		h.pages[number/pageSize] = p
	}
	index, size := sizeClass(len(rec.raw))
	if len(h.spare[index]) == 0 {
		block := make([]byte, max(blockSize, size))
		for ; len(block) >= size; block = block[size:] {
			h.spare[index] = append(h.spare[index], block[:0:size])
		}
	}
	last := len(h.spare[index]) - 1
	raw := h.spare[index][last]
	h.spare[index] = h.spare[index][:last]
	p.records[number%pageSize] = heldRecord{append(raw[:0], rec.raw...), rec.fcsCorrect, rec.Shift}
	p.used++
}

// take removes a record. Its bytes are valid until the next put. It returns false if there is no
// record of this number.
func (h *held) take(number int64) (r heldRecord, ok bool) {
	p := h.pages[number/pageSize]
	if p == nil || p.records[number%pageSize].raw == nil {
		return r, false
	}
	r, p.records[number%pageSize] = p.records[number%pageSize], heldRecord{}
	if p.used--; p.used == 0 {
		delete(h.pages, number/pageSize)
		h.sparePages = append(h.sparePages, p)
	}
	index, _ := sizeClass(len(r.raw))
	h.spare[index] = append(h.spare[index], r.raw)
	return r, true
}
