//! Line charts as SVG, drawn by hand so that a page needs nothing but itself.

use std::fmt::Write;

/// A line of points.
pub(crate) struct Line {
    pub(crate) name: String,
    /// Places, counted from the left, and values.
    pub(crate) points: Vec<(usize, f64)>,
}

const WIDTH: f64 = 664.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 40.0;

/// Colours that can be told apart, in greyscale by their order too.
const COLOURS: [&str; 10] = [
    "#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f",
    "#a0522d", "#6a3d9a",
];

/// A chart with a logarithmic vertical axis and one place for each of the labels.
pub(crate) fn chart(title: &str, unit: &str, labels: &[String], lines: &[Line]) -> String {
    let rates = || lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y);
    let most = rates().fold(1e-3, f64::max);
    let least = rates().fold(most, f64::min).max(most / 1e6);
    let (low, high) = (least.log10().floor(), most.log10().ceil().max(least.log10().floor() + 1.0));
    let y = |value: f64| {
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (value.max(1e-9).log10() - low) / (high - low))
    };
    // Places are spread evenly: they are the few values somebody chose, not a scale.
    let step = (WIDTH - LEFT - RIGHT) / (labels.len().max(2) - 1) as f64;
    let x = |place: usize| LEFT + step * place as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\">\
         <text x=\"{LEFT}\" y=\"16\" class=\"title\">{0}</text>\n",
        escape(title)
    );
    // Writing to a String cannot fail.
    for decade in low as i32..=high as i32 {
        let (at, value) = (y(10_f64.powi(decade)), 10_f64.powi(decade));
        let end = WIDTH - RIGHT;
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{end}\" class=\"grid\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" class=\"end\">{value} {}</text>",
            LEFT - 6.0,
            at + 4.0,
            escape(unit)
        );
    }
    for (place, label) in labels.iter().enumerate() {
        let at = x(place);
        let below = HEIGHT - BOTTOM + 18.0;
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{below}\" class=\"mid\">{}</text>",
            escape(label)
        );
    }
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<_> = line
            .points
            .iter()
            .map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value)))
            .collect();
        for point in &points {
            if let Some((x, y)) = point.split_once(',') {
                let _ = writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>");
            }
        }
        let beside = TOP + 18.0 * number as f64;
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" stroke=\"{colour}\"/>\
             <text x=\"{}\" y=\"{beside}\" fill=\"{colour}\">{}</text>",
            points.join(" "),
            WIDTH - RIGHT + 12.0,
            escape(&line.name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Text as HTML and SVG take it.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faster_line_is_drawn_higher_and_names_cannot_break_the_page() {
        let labels = ["0 ms".to_owned(), "8 ms".to_owned()];
        let line =
            |name: &str, rate| Line { name: name.into(), points: vec![(0, rate), (1, rate)] };
        let svg = chart("writes", "MB/s", &labels, &[line("fast", 100.0), line("<slow>", 1.0)]);
        // From the bottom, 1, to the top, 100, at both places.
        assert!(svg.contains("points=\"84.0,30.0 494.0,30.0\""), "{svg}");
        assert!(svg.contains("points=\"84.0,280.0 494.0,280.0\""), "{svg}");
        assert!(svg.contains("&lt;slow&gt;") && !svg.contains("<slow>"), "{svg}");
    }

    #[test]
    fn nothing_measured_is_an_empty_chart() {
        let svg = chart("nothing", "MB/s", &[], &[]);
        assert!(
            svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"),
            "{svg}"
        );
    }
}
