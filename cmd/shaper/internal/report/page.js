// Draws the charts of a replay.
(() => {
	"use strict";

	const { series, bins, chart, drawAll, inRate, highest, lowest, known, scaled, bitrate, bytes, millis } = page;

	// rates is the stack of one rate chart, in bit/s, bottom first.
	function rates(colors) {
		const stack = ["green", "yellow", "red"].map((name, i) => ({ label: name, swatch: name, values: colors[i] }));
		if (series.unmetered && series.unmetered.some((v) => v > 0)) {
			stack.push({ label: "unclassified", swatch: "none", values: series.unmetered });
		}
		let below = new Array(bins).fill(0);
		for (const line of stack) {
			line.values = inRate(line.values);
			line.drawn = below = line.values.map((v, i) => v + below[i]);
			line.fill = line.swatch;
		}
		return stack;
	}

	const offered = rates(series.offered);
	const passed = rates(series.passed);
	const peak = Math.max(highest(offered.at(-1).drawn), highest(passed.at(-1).drawn)) * 1.08 || 1;

	const draw = {
		offered: (figure) => chart(figure, {
			lines: offered, top: peak, height: 240, axis: (v) => scaled(v, "", 6), text: bitrate,
			idle: highest, idleText: "highest of any bin", label: "Offered rate over time",
		}),
		passed: (figure) => chart(figure, {
			lines: passed, top: peak, height: 240, axis: (v) => scaled(v, "", 6), text: bitrate,
			idle: highest, idleText: "highest of any bin", label: "Sent rate over time",
		}),
		meter: (figure, i) => {
			const looks = [{ swatch: "first", stroke: "first", fill: "first-fill" }, { swatch: "second", stroke: "second" }];
			const levels = series.meters[i];
			chart(figure, {
				lines: levels.map((b, j) => ({ label: b.name, values: known(b.lowest), ...looks[j] })),
				limits: levels.map((b, j) => ({ value: b.size, color: looks[j].stroke, text: b.burst + " " + scaled(b.size, "B", 4) })),
				top: Math.max(...levels.map((b) => b.size)) * 1.2 || 1, height: 190, axis: (v) => scaled(v, "B", 6), text: bytes,
				idle: lowest, idleText: "lowest of any bin", label: "Bucket levels over time",
			});
		},
		delay: (figure, i) => {
			const delay = known(series.queues[i].delay).map((v) => v == null ? null : v / 1e6);
			chart(figure, {
				lines: [{ label: "delay", values: delay, swatch: "first", stroke: "first", fill: "first-fill" }],
				top: highest(delay) * 1.12 || 1, height: 190, axis: (v) => +v.toPrecision(6) + " ms", text: millis,
				idle: highest, idleText: "longest of any bin", label: "Queue delay over time",
			});
		},
		waiting: (figure, i) => {
			const waiting = series.queues[i].waiting;
			chart(figure, {
				lines: [{ label: "backlog", values: waiting, swatch: "second", stroke: "second" }],
				top: highest(waiting) * 1.12 || 1, height: 130, axis: (v) => scaled(v, "B", 6), text: bytes,
				idle: highest, idleText: "highest of any bin", label: "Backlog of the queue over time",
			});
		},
	};

	drawAll(draw);
})();
