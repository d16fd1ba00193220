// Draws the charts of a replay.
(() => {
	"use strict";

	const { chart, laneHeight, zoom, drawAll, highest, lowest, scaled, bitrate, bytes, millis } = page;
	const { series, end, first, memo, arriving, leaving, each, perSecond } = views;
	const colors = ["green", "yellow", "red", "unclassified"];

	// stack is the lines of a rate chart, in bit/s, bottom first. Each draws above the previous one.
	function stack(lists) {
		let below = memo(({ cells }) => cells.map(() => 0));
		return lists.map((values, color) => {
			const rate = perSecond(values);
			const base = below;
			below = memo((view) => rate(view).map((v, i) => v + base(view)[i]));
			const swatch = color === 3 ? "none" : colors[color];
			return { label: colors[color], swatch, fill: swatch, values: rate, drawn: below };
		});
	}

	// peak is the end of the axis of lines: the largest value in view, or a limit near it.
	const peak = (lines, limits) => memo((view) => {
		let top = 0;
		view.cells.forEach((c, i) => {
			if (c.to / 1e9 <= view.min || c.from / 1e9 >= view.max) return;
			for (const line of lines) top = Math.max(top, (line.drawn || line.values)(view)[i]);
		});
		for (const { value } of limits) if (value < 3 * top) top = Math.max(top, value);
		return top * 1.08 || 1;
	});

	const ofColor = (color) => (t, i) => (t.color[i] === color ? t.length[i] : 0);
	const unmetered = series.unmetered.some((v) => v > 0) ? [series.unmetered] : [];
	const offered = stack([...series.offered, ...unmetered].map((v, c) => arriving(v, ofColor(c))));
	const passed = stack([...series.passed, ...unmetered].map((v, c) => leaving(v, ofColor(c))));
	const limitsOf = (list) => list.map(({ text, rate }, i) => ({ value: rate, text, color: ["second", "first"][i] }));
	const only = series.classes.length === 1 ? limitsOf(series.classes[0].limits) : [];
	const top = peak([offered.at(-1), passed.at(-1)], only);

	// marks puts the numbers of the episodes in view, which zoom to them, into lanes above the plot,
	// and returns the number of lanes.
	function marks(u) {
		let buttons = u.over.querySelectorAll(".mark");
		if (!buttons.length) {
			for (const [i, e] of series.episodes.entries()) {
				const b = u.over.appendChild(document.createElement("button"));
				b.className = "mark";
				b.textContent = i + 1;
				b.title = e.title;
				b.addEventListener("click", () => zoomTo(e));
				b.addEventListener("mousedown", (event) => event.stopPropagation());
			}
			buttons = u.over.querySelectorAll(".mark");
		}
		const width = u.over.clientWidth;
		const ends = []; // of the last mark in each lane, px
		series.episodes.map((e, i) => [u.valToPos(e.from, "x"), u.valToPos(e.to, "x"), buttons[i]]).sort((a, b) => a[0] - b[0]).forEach(([from, to, b]) => {
			b.hidden = to < 0 || from > width;
			if (b.hidden) return;
			const left = Math.min(Math.max(0, from), width - 18);
			const right = Math.max(left + 18, Math.min(to, width));
			let row = ends.findIndex((end) => end < left);
			if (row < 0) row = ends.length;
			ends[row] = right + 2;
			b.style.left = left + "px";
			b.style.top = -(row + 1) * laneHeight + "px";
			b.style.width = right - left + "px";
		});
		return ends.length;
	}

	function zoomTo({ from, to }) {
		const beside = Math.max((to - from) * 0.15, 1e-3);
		zoom(Math.max(0, from - beside), Math.min(end, to + beside));
	}
	for (const b of document.querySelectorAll("button[data-from]")) {
		b.addEventListener("click", () => {
			const [from, to] = [b.dataset.from / 1e9, b.dataset.to / 1e9];
			if ("whole" in b.dataset) zoom(0, end);
			else zoomTo({ from, to });
			if ("scroll" in b.dataset) document.querySelector("[data-chart=offered]").scrollIntoView({ block: "nearest" });
		});
	}

	const rateChart = { height: 240, axis: (v) => scaled(v, "", 6), text: bitrate, idle: highest, idleText: "highest in any bin" };
	const looks = [{ swatch: "first", stroke: "first", fill: "first-fill" }, { swatch: "second", stroke: "second" }];
	const ofBins = (values, merge) => each((b, to) => {
		let out = null;
		for (; b < to; b++) if (values[b] >= 0) out = out == null ? values[b] : merge(out, values[b]);
		return out;
	});
	const draw = {
		offered: (figure) => chart(figure, { ...rateChart, lines: offered, top, limits: only, marks, label: "Offered rate over time" }),
		passed: (figure) => chart(figure, { ...rateChart, lines: passed, top, limits: only, label: "Sent rate over time" }),
		class: (figure, i) => {
			const c = series.classes[i];
			const lines = stack(c.offered.map((v, color) => arriving(v, (t, k) => (t.class[k] === c.index && t.color[k] === color ? t.length[k] : 0))));
			const sent = perSecond(leaving(c.sent, (t, k) => (t.class[k] === c.index ? t.length[k] : 0)));
			lines.push({ label: "sent", swatch: "sent", stroke: "text", values: sent, over: true });
			const limits = limitsOf(c.limits);
			chart(figure, { ...rateChart, height: 150, lines, top: peak(lines, limits), limits, label: "Rate of class " + c.name + " over time" });
		},
		meter: (figure, i) => {
			const levels = series.meters[i];
			const packets = series.packets[i];
			const entries = (t, from, to) => t.levels[i].slice(first(t.passing[i], from), first(t.passing[i], to));
			const lines = levels.flatMap((b, j) => {
				const low = each((at, to) => {
					let out = null;
					for (; at < to; at++) if (b.lowest[at] >= 0 && (out == null || b.lowest[at] < out)) out = b.lowest[at];
					return out;
				}, (t, from, to) => lowest(entries(t, from, to).map((l) => l[j + 1])));
				const mean = each((at, to) => {
					let sum = 0;
					let n = 0;
					for (; at < to; at++) if (b.mean[at] >= 0) [sum, n] = [sum + b.mean[at] * packets[at], n + packets[at]];
					return n ? Math.round(sum / n) : null;
				}, (t, from, to) => {
					const list = entries(t, from, to);
					return list.length ? Math.round(list.reduce((sum, l) => sum + l[j + 1], 0) / list.length) : null;
				});
				return [
					{ label: b.name + " lowest", values: low, ...looks[j] },
					{ label: "mean", values: mean, swatch: looks[j].swatch + "-mean", stroke: looks[j].stroke, thin: true },
				];
			});
			chart(figure, {
				lines, limits: levels.map((b, j) => ({ value: b.size, color: looks[j].stroke, text: b.burst + " " + scaled(b.size, "B", 4) })),
				top: () => Math.max(...levels.map((b) => b.size)) * 1.2 || 1, height: 190, axis: (v) => scaled(v, "B", 6), text: bytes,
				idle: lowest, idleText: "lowest in any bin", label: "Bucket levels over time",
			});
		},
		delay: (figure, i) => {
			const delay = ofBins(series.queues[i].delay.map((v) => (v < 0 ? v : v / 1e6)), Math.max);
			const lines = [{ label: "delay", values: delay, ...looks[0] }];
			chart(figure, {
				lines, top: peak(lines, []), height: 190, axis: (v) => +v.toPrecision(6) + " ms", text: millis,
				idle: highest, idleText: "longest in any bin", label: "Queue delay over time",
			});
		},
		waiting: (figure, i) => {
			const waiting = each((b, to) => {
				let sum = 0;
				for (let k = b; k < to; k++) sum += series.queues[i].waiting[k];
				return Math.round(sum / (to - b));
			});
			const lines = [{ label: "backlog", values: waiting, ...looks[1] }];
			chart(figure, {
				lines, top: peak(lines, []), height: 130, axis: (v) => scaled(v, "B", 6), text: bytes,
				idle: highest, idleText: "highest in any bin", label: "Backlog of the queue over time",
			});
		},
	};

	drawAll(draw);
})();
