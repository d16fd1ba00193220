// Bins for a part of the time axis. A view is a list of cells: groups of bins of the series, or
// parts of a bin around the packets of a tile. So a zoom goes down to single packets.
const views = (() => {
	"use strict";

	const series = JSON.parse(document.getElementById("series").textContent);
	const bins = series.bins;
	const width = series.binWidth; // ns
	const wanted = 600; // most cells in view
	const few = 150; // cells in view, below which those in a tile become narrower
	const narrowest = 1000; // ns

	const tiles = (series.tiles || []).map((t) => {
		let now = t.from;
		const at = t.after.map((dt) => (now += dt));
		const left = t.left.map((dt, i) => (dt < 0 ? Infinity : at[i] + dt));
		const order = left.map((_, i) => i).sort((a, b) => left[a] - left[b]);
		const passing = t.levels.map((list) => list.map((l) => l[0])); // packets, by meter
		// Until the last packet arrived, no others did.
		return { ...t, at, to: now, order, leaving: order.map((i) => left[i]), passing };
	});

	// first returns the index of the first number in a sorted list that is at least x.
	function first(list, x) {
		let low = 0;
		let high = list.length;
		while (low < high) {
			const mid = (low + high) >> 1;
			if (list[mid] < x) low = mid + 1;
			else high = mid;
		}
		return low;
	}

	// split divides a bin into cells. All borders are multiples of fine, so no cell is
	// narrower. Cells between low and high that are wholly in a tile have that width.
	function split(b, fine, low, high, cells) {
		const bin = { b, from: b * width, to: (b + 1) * width, inside: [], open: width };
		let now = bin.from;
		const cell = (to, tile) => {
			if (to <= now) return;
			cells.push(tile ? { from: now, to, bin, tile, i: first(tile.at, now), j: first(tile.at, to) } : { from: now, to, bin });
			now = to;
		};
		for (const tile of tiles) {
			const from = Math.ceil(Math.max(tile.from, bin.from) / fine) * fine;
			const to = Math.floor(Math.min(tile.to, bin.to) / fine) * fine;
			if (to <= from) continue;
			bin.inside.push({ tile, i: first(tile.at, from), j: first(tile.at, to) });
			bin.open -= to - from;
			cell(from);
			cell(Math.min(Math.floor(low / fine) * fine, to), tile);
			while (now < Math.min(high, to)) cell(now + fine, tile);
			cell(to, tile);
		}
		cell(bin.to);
	}

	// of returns the view in which the times from min to max, in s, have up to wanted cells.
	function of(min, max) {
		const low = min * 1e9;
		const high = max * 1e9;
		const doubled = (n) => {
			let m = 1;
			while (n / m > wanted) m *= 2;
			return m;
		};
		const far = doubled(bins); // bins of a cell out of view
		const near = doubled((high - low) / width);
		let fine = width;
		while (near === 1 && fine > narrowest && high - low < bins * width && (high - low) / fine < few) fine /= 2;
		const cells = [];
		for (let b = 0; b < bins;) {
			const step = (b + far) * width <= low || b * width >= high ? far : near;
			const seen = (b + 1) * width > low && b * width < high;
			if (step === 1 && seen && fine < width && tiles.some((t) => t.from < (b + 1) * width && t.to > b * width)) {
				split(b, fine, low, high, cells);
			} else {
				cells.push({ from: b * width, to: Math.min(b + step, bins) * width, b, end: Math.min(b + step, bins) });
			}
			b += step;
		}
		return { cells, min, max, edges: [...cells.map((c) => c.from / 1e9), bins * width / 1e9] };
	}

	const whole = of(0, bins * width / 1e9);
	const memo = (f) => {
		let last;
		let value;
		return (v) => {
			if (v !== last) [last, value] = [v, f(v)];
			return value;
		};
	};

	function total(values, b, end) {
		let sum = 0;
		for (; b < end; b++) sum += values[b];
		return sum;
	}

	// arriving returns bytes per cell. bytes returns those of packet i of a tile. The bytes of a bin
	// that are in no tile are spread over the rest of the bin.
	const arriving = (values, bytes) => memo(({ cells }) => cells.map((c) => {
		const sum = (tile, i, j) => {
			let n = 0;
			for (; i < j; i++) n += bytes(tile, i);
			return n;
		};
		if (!c.bin) return total(values, c.b, c.end);
		if (c.tile) return sum(c.tile, c.i, c.j);
		let rest = values[c.bin.b];
		for (const { tile, i, j } of c.bin.inside) rest -= sum(tile, i, j);
		return rest * (c.to - c.from) / c.bin.open;
	}));

	// leaving is arriving by the times of departure. Packets that arrived before a tile may be
	// queued and leave in it. Then what is in no tile is spread over the whole bin.
	const queued = tiles.some((t) => t.left.some((dt) => dt > 0));
	const leaving = (values, bytes) => (queued ? memo(({ cells }) => {
		const sum = (from, to) => {
			let n = 0;
			for (const t of tiles) {
				for (let i = first(t.leaving, from), j = first(t.leaving, to); i < j; i++) n += bytes(t, t.order[i]);
			}
			return n;
		};
		return cells.map((c) => {
			if (!c.bin) return total(values, c.b, c.end);
			const rest = Math.max(0, values[c.bin.b] - sum(c.bin.from, c.bin.to));
			return sum(c.from, c.to) + rest * (c.to - c.from) / width;
		});
	}) : arriving(values, (t, i) => (t.left[i] < 0 ? 0 : bytes(t, i))));

	// each returns a value per cell: merge gets the bins of a cell, and levels the levels of a tile
	// in it. Without levels, parts of a bin have the value of the bin.
	const each = (merge, levels) => memo(({ cells }) => cells.map((c) => {
		if (!c.bin) return merge(c.b, c.end);
		return c.tile && levels ? levels(c.tile, c.i, c.j) : merge(c.bin.b, c.bin.b + 1);
	}));

	const perSecond = (values) => memo((view) => values(view).map((n, i) => n * 8e9 / (view.cells[i].to - view.cells[i].from)));

	return { series, bins, end: bins * width / 1e9, of, whole, memo, first, arriving, leaving, each, perSecond };
})();
