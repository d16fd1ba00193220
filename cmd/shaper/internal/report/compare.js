// Draws the charts of a comparison: one a meter, all on one scale.
(() => {
	"use strict";

	const { chart, drawAll, highest, scaled, bitrate } = page;
	const { series, whole, arriving, perSecond } = views;

	const rate = (values) => perSecond(arriving(values, () => 0));
	const offered = rate(series.offered);
	const peak = Math.max(highest(offered(whole)), series.rate) * 1.08 || 1;
	const limits = series.rate ? [{ value: series.rate, color: "second", text: series.rateText }] : [];

	drawAll({
		passed: (figure, i) => chart(figure, {
			lines: [
				{ label: "passed", values: rate(series.passed[i]), swatch: "first", stroke: "first", fill: "first-fill" },
				{ label: "offered", values: offered, swatch: "offered", fill: "offered" },
			],
			limits, top: () => peak, height: 150, axis: (v) => scaled(v, "", 6), text: bitrate,
			idle: highest, idleText: "highest of any bin", label: "Rate that passed " + series.names[i],
		}),
	});
})();
