/*
 * Three hosts share a budget by leases: host.go and store.go in small numbers, for spin.
 * TestSpin visits all states and checks that the hosts together never use more than the
 * budget.
 *
 * A step is half an interval, and a deadline is one step. A host calls every other step:
 * hosts 0 and 2 in even steps, host 1 in odd ones. In each call its demand is either
 * everything or nothing, which covers any demand. At most FAULTS failures happen, at any
 * step and in any order. A host's requests or replies are lost from then on, or arrive
 * again. No host reaches the store, or all do again. A host crashes and restarts. The
 * replica stops receiving data, and later takes over or resumes.
 *
 * Slow parts of the protocol are as slow as possible. A host is late one step after LATE.
 * The store surveys all hosts in a call, or does not if the last survey was in the previous
 * step. A call takes no time; instead, a host uses its lease as if the reply had been sent
 * at once, and rises to its rescue share as if the request had taken a whole deadline.
 *
 * Not modeled: the arithmetic of shares (a host gets everything that is free, or its part if
 * more is granted than the budget has); the second bucket and bursts, which are amounts like
 * rates; clock drift; messages that take longer than a call; changes of the budget's size;
 * the rescue share of a host that has never received a reply, which is in addition to the
 * budget; a store that loses its data or time; and learning after a time without calls. The
 * Go tests cover all of these.
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
#define OVER    (LEASE + 1)             /* after its last call, a host has no lease for certain */
#define RISE    (LEASE + max(GROW - 1, 1))
#ifndef SPARE
#define SPARE   0       /* amount that a host without demand may keep */
#endif
#define min(a, b) ((a) < (b) -> (a) : (b))
#define max(a, b) ((a) > (b) -> (a) : (b))

/* A host. */
byte share[N];          /* granted and not released */
byte age[N] = RISE;     /* time since the last reply that it received, at most RISE */
bit  heard[N];          /* it received a reply since it started; before that it uses nothing here */
bit  mine[N];           /* the store knows this process, not a previous one */

/* The store's fields for each host. */
bit  known[N];
byte holds[N];          /* the most that it holds by its lease */
byte seen[N] = SEEN;    /* time since the last reply known to have arrived, at most SEEN */
byte called[N] = OVER;  /* time since its last call, at most OVER */
byte counts[N];         /* counted by the store: 0: holds, 1: late, max(holds, R), 2: R */
bit  demand[N];         /* at its last call */
byte part[N];           /* its share while more is granted than the budget has */
byte surveyed;          /* time since the last survey, at most 2 */
byte learns;            /* number of steps in which no share grows */
bit  moved;             /* a replica took over; the next survey notices */

/* Failures. Their number is limited to keep the state space small enough to
 * visit all of it. */
#ifndef FAULTS
#define FAULTS  3
#endif
byte faults;
byte link[N];           /* 1: requests are lost, 2: replies are */
bit  down;              /* no host reaches the store */
bit  behind;            /* the replica receives no data */

bit  even;

#define uses(h) (!heard[h] -> 0 : (age[h] <= LEASE -> share[h] : (age[h] < RISE -> min(share[h], R) : R)))
#define mostHeld(h) (!known[h] -> 0 : (counts[h] == 0 -> holds[h] : (counts[h] == 1 -> max(holds[h], R) : R)))
#define isLate(h) (seen[h] >= SEEN)

/* Temporary variables, always 0 between steps. */
short sum, free, keep;
byte  i, has, grant, present;
bit   deaf, first, wants, surveying;

inline add() {
	sum = 0;
	i = 0;
	do
	:: i < N -> sum = sum + mostHeld(i); i++
	:: else -> break
	od;
	i = 0
}

inline survey() {
	surveyed = 0;
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
		:: known[i] && isLate(i) -> free = free - mostHeld(i)
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

/* call is a call of host h that reaches the store. */
inline call(h) {
	if
	:: wants = 1
	:: wants = 0
	fi;
	if
	:: surveyed >= 1 -> surveying = 1
	:: surveyed < 2 -> surveying = 0
	fi;
	d_step {
		if
		:: wants
		:: else -> share[h] = min(share[h], SPARE)    /* it releases before it reports */
		fi;
		has = uses(h);
		if
		:: known[h] && !mine[h] && called[h] < OVER    /* the name is in use */
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
			:: surveying -> survey()
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
		has = 0; wants = 0; surveying = 0; grant = 0; sum = 0; free = 0; deaf = 0; first = 0
	}
}

inline crash(h) {
	heard[h] = 0; mine[h] = 0; share[h] = 0; age[h] = RISE
}

/* failover is to a replica that has for each host no more than the host uses.
 * The replica's last survey is the same as the primary's, or one earlier, and
 * the next call surveys. */
inline failover() {
	moved = 1;
	behind = 0;
	if
	:: surveyed = 2
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
	surveyed = min(surveyed + 1, 2);
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
#ifdef REACH    /* a state in which a host is at its rescue share and the others use all the rest */
		assert(!(heard[0] && age[0] == RISE && uses(0) + uses(1) + uses(2) == B && share[1] > R))
#endif
	}
	od
}
