/*
 * Three hosts share a budget by leases: host.go and store.go in small numbers, for spin.
 * TestSpin visits all states: what the hosts may use never exceeds the budget.
 *
 * A step is half an interval. A deadline is one step. A host calls every other step, 0 and 2
 * in the even ones, 1 in the odd ones. In each call it wants all that it can get or nothing,
 * which is any demand. So many faults as FAULTS happen at any step, in any order: a
 * host's requests or replies are lost from then on, or heard again; nobody reaches the store, or
 * all do again; a host crashes and starts again; the replica gets nothing any more, and
 * takes over at some time or gets everything again.
 *
 * What is slow in the protocol is as slow as it can be: a host is late one step after LATE, the
 * store looks at all hosts in a call or, if the last look was in the step before, does not. A
 * call takes no time; instead a host uses its lease as if the reply had been sent at once, and
 * rises to its rescue share as if the request had taken a whole deadline.
 *
 * Not here: the arithmetic of shares (a host gets all that is free, or its part if more is
 * handed out than there is), the second bucket and bursts, which are amounts like rates,
 * clocks that drift, messages that take longer than a call, changes of the budget's size,
 * the rescue share of a host that never heard of the store, which is beyond the budget,
 * a store that loses its data or its time, and what it learns after a silence of all hosts.
 * The tests in Go have all of these.
 */

#define N       3
#ifndef R
#define R       1       /* a host's rescue share */
#endif
#ifndef B
#define B       (N * R) /* the budget */
#endif
#define LEASE   8       /* 3 intervals + 2 deadlines */
#ifndef GROW
#define GROW    9       /* 4 intervals + 1 deadline */
#endif
#ifndef LATE
#define LATE    6       /* 3 intervals */
#endif
#define SEEN    (LATE + 1)
#define OVER    (LEASE + 1)             /* after its last call a host has no lease for sure */
#define RISE    (LEASE + max(GROW - 1, 1))
#ifndef SPARE
#define SPARE   0       /* what a host without demand may keep */
#endif
#define min(a, b) ((a) < (b) -> (a) : (b))
#define max(a, b) ((a) > (b) -> (a) : (b))

/* A host. */
byte share[N];          /* granted, and not given up */
byte age[N] = RISE;     /* since the last reply that it heard, at most RISE */
bit  heard[N];          /* a reply since it started; before, it uses nothing here */
bit  mine[N];           /* the store knows this process, not one before it */

/* The store, for each host. */
bit  known[N];
byte holds[N];          /* the most that it holds by its lease */
byte seen[N] = SEEN;    /* since the last reply that it is known to have heard, at most SEEN */
byte called[N] = OVER;  /* since its last call, at most OVER */
byte counts[N];         /* 0: holds, 1: it is late, the larger of holds and R, 2: R */
bit  demand[N];         /* at its last call */
byte part[N];           /* what it may have while more is handed out than there is */
byte looked;            /* since the last look, at most 2 */
byte learns;            /* steps for which no share grows */
bit  moved;             /* the server is another one, which the next look sees */

/* Faults. A budget of them keeps the states few enough to visit them all. */
#ifndef FAULTS
#define FAULTS  3
#endif
byte faults;
byte link[N];           /* 1: requests are lost, 2: replies are */
bit  down;              /* nobody reaches the store */
bit  behind;            /* the replica gets nothing any more */

bit  even;

#define uses(h) (!heard[h] -> 0 : (age[h] <= LEASE -> share[h] : (age[h] < RISE -> min(share[h], R) : R)))
#define held(h) (!known[h] -> 0 : (counts[h] == 0 -> holds[h] : (counts[h] == 1 -> max(holds[h], R) : R)))
#define isLate(h) (seen[h] >= SEEN)

/* Scratch, always 0 between steps. */
short sum, free, keep;
byte  i, has, grant, present;
bit   deaf, first, wants, looks;

inline add() {
	sum = 0;
	i = 0;
	do
	:: i < N -> sum = sum + held(i); i++
	:: else -> break
	od;
	i = 0
}

inline look() {
	looked = 0;
	if
	:: moved -> moved = 0; learns = OVER
	:: else
	fi;
	i = 0;
	do
	:: i < N ->
		if
		:: called[i] == 0 || !isLate(i) -> counts[i] = 0
		:: called[i] >= OVER && isLate(i) -> counts[i] = 2; holds[i] = 0
		:: else -> counts[i] = 1
		fi;
		i++
	:: else -> break
	od;
	add();
	i = 0; free = B; keep = 0; present = 0;
	do
	:: i < N ->
		if
		:: known[i] && isLate(i) -> free = free - held(i)
		:: known[i] && !isLate(i) -> keep = keep + min(holds[i], R); present = present + demand[i]
		:: else
		fi;
		i++
	:: else -> break
	od;
#ifdef NOCURB
	keep = 0;
#endif
	i = 0;
	do
	:: i < N ->
		part[i] = 0;
		if
		:: sum > B && known[i] && !isLate(i) ->
#ifndef NOCURB
			part[i] = min(holds[i], R);
#endif
			part[i] = part[i] + (demand[i] -> max(free - keep, 0) / present : 0)
		:: else
		fi;
		i++
	:: else -> break
	od;
	free = 0; keep = 0; present = 0; sum = 0; i = 0
}

/* call is one of host h that reaches the store. */
inline call(h) {
	if
	:: wants = 1
	:: wants = 0
	fi;
	if
	:: looked >= 1 -> looks = 1
	:: looked < 2 -> looks = 0
	fi;
	d_step {
		if
		:: wants
		:: else -> share[h] = min(share[h], SPARE)    /* it gives up before it says so */
		fi;
		has = uses(h);
		if
		:: known[h] && !mine[h] && called[h] < OVER    /* the name is used */
		:: else ->
			first = !known[h] || !mine[h];
			if
			:: first -> known[h] = 1; mine[h] = 1; seen[h] = SEEN
			:: else
			fi;
			holds[h] = has;
			demand[h] = (SPARE > 0 -> wants : 1);
			called[h] = 0;
			counts[h] = 0;
			if
			:: heard[h] -> seen[h] = min(seen[h], age[h])
			:: else
			fi;
			deaf = isLate(h);
			if
#ifndef NOTDEAF
			:: deaf -> holds[h] = max(holds[h], R)
#endif
			:: else
			fi;
			if
			:: looks -> look()
			:: else
			fi;
			add();
			free = B - sum;
			if
#ifndef OVERCOMMIT
			:: free < 0 -> grant = min(has, part[h])
#endif
			:: free >= 0 && (learns > 0 || deaf && !first) -> grant = has
			:: else -> grant = holds[h] + max(free, 0)
			fi;
			grant = (wants -> grant : min(grant, SPARE));
#ifdef ATONCE
			holds[h] = grant;
#else
			holds[h] = max(holds[h], grant);
#endif
			if
			:: link[h] == 2    /* the reply is lost */
			:: else -> heard[h] = 1; age[h] = 0; share[h] = (behind -> min(grant, has) : grant)
			fi
		fi;
		has = 0; wants = 0; looks = 0; grant = 0; sum = 0; free = 0; deaf = 0; first = 0
	}
}

inline crash(h) {
	heard[h] = 0; mine[h] = 0; share[h] = 0; age[h] = RISE
}

/* failover is to a replica that knows of each host no more than what it uses. The
 * replica's last look was the same, or one before it, and the next call looks. */
inline failover() {
	moved = 1;
	behind = 0;
	if
	:: looked = 2
	:: skip
	fi;
	i = 0;
	do
	:: i < N ->
		holds[i] = (heard[i] && age[i] <= LEASE -> share[i] : 0);
		counts[i] = (counts[i] == 0 && isLate(i) -> 1 : counts[i]);
		i++
	:: else -> break
	od;
	i = 0
}

inline pass() {
	d_step {
	i = 0;
	do
	:: i < N ->
		age[i] = min(age[i] + 1, RISE);
		if
		:: age[i] > LEASE && share[i] > R -> share[i] = R
		:: else
		fi;
		if
		:: age[i] == RISE -> share[i] = 0
		:: else
		fi;
		seen[i] = min(seen[i] + 1, SEEN);
		called[i] = min(called[i] + 1, OVER);
		i++
	:: else -> break
	od;
	i = 0;
	looked = min(looked + 1, 2);
	learns = (learns > 0 -> learns - 1 : 0);
	even = !even
	}
}

active proctype world() {
	atomic {
		learns = OVER
	}
	do
	:: atomic {
		if
		:: skip
		:: faults < FAULTS -> faults++; link[0] = 2
		:: faults < FAULTS -> faults++; link[1] = 2
		:: faults < FAULTS -> faults++; link[2] = 2
		:: faults < FAULTS && !down -> faults++; down = 1
#ifndef SILENCE
		:: faults < FAULTS -> faults++; link[0] = 1
		:: faults < FAULTS -> faults++; link[1] = 1
		:: faults < FAULTS -> faults++; link[2] = 1
		:: link[0] != 0 -> link[0] = 0
		:: link[1] != 0 -> link[1] = 0
		:: link[2] != 0 -> link[2] = 0
		:: down -> down = 0
		:: faults < FAULTS && heard[2] -> faults++; crash(2)
		:: faults < FAULTS && !behind -> faults++; behind = 1
		:: behind -> behind = 0
		:: behind -> failover()
#endif
		fi;
		if
		:: even && !down ->
			if
			:: link[0] != 1 -> call(0)
			:: else
			fi;
			if
			:: link[2] != 1 -> call(2)
			:: else
			fi
		:: !even && !down ->
			if
			:: link[1] != 1 -> call(1)
			:: else
			fi
		:: else
		fi;
		assert(uses(0) + uses(1) + uses(2) <= B);
		pass();
		assert(uses(0) + uses(1) + uses(2) <= B);
#ifdef REACH    /* that a host is at its rescue share, and the others use all the rest */
		assert(!(heard[0] && age[0] == RISE && uses(0) + uses(1) + uses(2) == B && share[1] > R))
#endif
	}
	od
}
