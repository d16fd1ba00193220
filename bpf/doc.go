// Package bpf contains the compiled eBPF programs of the kernel plane. Their source is in
// src: one header per stage, in the order of package dataplane.
//
//	policy.h      constants and types, shared with user space
//	maps.h        maps, shared with user space
//	packet.h      a packet, and how its bytes are read at each hook
//	headers.h     protocol numbers and header layouts
//	extensions.h  IPv6 extension headers
//	layers.h      VLAN tags, MPLS labels, PPPoE
//	parse.h       headers
//	length.h      the metered length of a packet and its segments
//	classify.h    the first class that matches
//	bucket.h      RFC 2697, RFC 2698, RFC 4115, for any number of CPUs at once
//	lease.h       the phases of a lease
//	meter.h       a packet through a chain of meters
//	queue.h       departure times and early drops of queues
//	act.h         marks, counts
//	shape.h       all stages in order
//	shaper.c      the programs: tc egress, tc ingress, XDP; also compiled for several interfaces
//	walk.c        the program that meters packets of a capture
//	budget.c      the programs by which user space meters by budgets and sets leases
//
// make generate compiles and compresses them; using this package needs no compiler.
//
// Package kernel is the interface to these programs. Any version may change this package
// incompatibly.
package bpf

// The target is little-endian: amd64, arm64, riscv64. The compiler's version is
// part of the objects, which are committed.
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu" -type constants -type search -type search6 -type bound -type action -type class -type bucket -type profile -type stage -type state -type budget -type leased -type key -type addr -type count -type counts -type high -type early -type pace -type queue -type backlog -type departure -type flow -type prefix_bucket -type prefix_search -type customer -type plan -type record -output-stem shaper Shaper src/shaper.c
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -DSHARERS=4096 -I/usr/include/x86_64-linux-gnu" -output-stem shared Shared src/shaper.c
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu" -output-stem walk Walk src/walk.c
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu" -type move -type addition -output-stem budget Budget src/budget.c
//go:generate llvm-strip-14 --wildcard --strip-symbol=LBB* --remove-section=.rel.BTF.ext shaper_bpfel.o shared_bpfel.o walk_bpfel.o budget_bpfel.o
//go:generate gzip -9nf shaper_bpfel.o shared_bpfel.o walk_bpfel.o budget_bpfel.o
//go:generate sed -i -e "/\"bytes\"/d" -e "s/bytes.NewReader/decompress/" -e "s/_bpfel.o$/&.gz/" shaper_bpfel.go shared_bpfel.go walk_bpfel.go budget_bpfel.go
