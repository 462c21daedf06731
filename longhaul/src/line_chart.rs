//! Series charts as SVG that needs nothing but itself: rates on a logarithmic scale, over places that are spread evenly.

use std::fmt::Write as _;

/// The width of a chart.
pub const WIDTH: f64 = 664.0;

/// Its height.
pub const HEIGHT: f64 = 320.0;

/// Room for the scale on the left, names of lines on the right, the title above and names of places below.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 40.0;

/// Colours that can be told apart, in greyscale by their order too.
const COLOURS: [&str; 10] = [
    "#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f",
    "#a0522d", "#6a3d9a",
];

/// A line of points.
pub struct Series {
    /// Its name.
    pub name: String,
    /// Places, counted from the left, and bytes a second.
    pub points: Vec<(usize, f64)>,
    /// The number of its colour.
    pub colour: usize,
    /// It shows no measurements.
    pub dashed: bool,
}

/// What the values of a chart are, by the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Bytes.
    Bytes,
    /// How often something was done.
    Times,
}

/// A chart of bytes with one place for each of the labels, as a group of an SVG picture.
#[must_use]
pub fn chart(title: &str, labels: &[String], lines: &[Series]) -> String {
    chart_of(title, labels, lines, Measure::Bytes)
}

/// The same of what `measure` says.
#[must_use]
pub fn chart_of(title: &str, labels: &[String], lines: &[Series], measure: Measure) -> String {
    let axes = Axes { measure, ..Axes::new(labels.len(), lines) };
    let mut svg = String::from("<g font-family=\"sans-serif\" font-size=\"12\">\n");
    text(&mut svg, (LEFT, 16.0), "font-weight=\"bold\"", title);
    axes.draw(&mut svg, labels);
    for (number, line) in lines.iter().enumerate() {
        line.draw(&mut svg, &axes);
        let beside = (WIDTH - RIGHT + 12.0, TOP + 18.0 * number as f64);
        text(&mut svg, beside, &format!("fill=\"{}\"", line.colour()), &line.name);
    }
    svg.push_str("</g>\n");
    svg
}

/// Adds text at a place, with these attributes.
pub fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{}</text>", escape(text));
}

/// Text as SVG and HTML take it.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Series {
    const fn colour(&self) -> &'static str {
        COLOURS[self.colour % COLOURS.len()]
    }

    fn draw(&self, svg: &mut String, axes: &Axes) {
        let colour = self.colour();
        let points: Vec<_> =
            self.points.iter().map(|(place, rate)| (axes.x(*place), axes.y(*rate))).collect();
        for (x, y) in points.iter().filter(|_| !self.dashed) {
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let dashes = if self.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"{colour}\"{dashes} points=\"{}\"/>",
            points.join(" ")
        );
    }
}

/// Where rates and places lie.
struct Axes {
    places: usize,
    /// Powers of ten, at the foot and at the top.
    low: i32,
    high: i32,
    measure: Measure,
}

impl Axes {
    fn new(places: usize, lines: &[Series]) -> Self {
        let rates = || lines.iter().flat_map(|line| &line.points).map(|(_, rate)| *rate);
        let most = rates().fold(1.0, f64::max);
        let least = rates().fold(most, f64::min).max(most / 1e6).max(1.0);
        let low = least.log10().floor() as i32;
        let high = (most.log10().ceil() as i32).max(low + 1);
        Self { places, low, high, measure: Measure::Bytes }
    }

    /// Places are spread evenly: they are the few values somebody chose, not a scale.
    fn x(&self, place: usize) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) / (self.places.max(2) - 1) as f64 * place as f64
    }

    fn y(&self, rate: f64) -> f64 {
        let share = (rate.max(1.0).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - share)
    }

    fn draw(&self, svg: &mut String, labels: &[String]) {
        for power in self.low..=self.high {
            let (y, end) = (self.y(10_f64.powi(power)), WIDTH - RIGHT);
            let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"#e2e2e2\"/>");
            text(svg, (LEFT - 6.0, y + 4.0), "text-anchor=\"end\"", &self.measure.scale(power));
        }
        for (place, label) in labels.iter().enumerate() {
            let below = (self.x(place), HEIGHT - BOTTOM + 18.0);
            text(svg, below, "text-anchor=\"middle\"", label);
        }
    }
}

impl Measure {
    /// A power of ten.
    fn scale(self, power: i32) -> String {
        let (unit, power) = match (self, power) {
            (Self::Bytes, 9..) => (" GB/s", power - 9),
            (Self::Bytes, 6..) => (" MB/s", power - 6),
            (Self::Bytes, 3..) => (" kB/s", power - 3),
            (Self::Bytes, _) => (" B/s", power),
            (Self::Times, _) => ("/s", power),
        };
        format!("{}{unit}", 10_f64.powi(power))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faster_line_is_drawn_higher_and_names_cannot_break_the_page() {
        let labels = ["0 ms".to_owned(), "8 ms".to_owned()];
        let line = |name: &str, rate, dashed| {
            let points = vec![(0, rate), (1, rate)];
            Series { name: name.into(), points, colour: 0, dashed }
        };
        let lines = [line("fast", 100e6, false), line("<slow>", 1e6, true)];
        let svg = chart("writes", &labels, &lines);
        // From the bottom, 1 MB/s, to the top, 100 MB/s, at both places.
        assert!(svg.contains("points=\"84.0,30.0 494.0,30.0\""), "{svg}");
        assert!(
            svg.contains("stroke-dasharray=\"5 4\" points=\"84.0,280.0 494.0,280.0\""),
            "{svg}"
        );
        assert!(svg.contains(">100 MB/s<") && svg.contains(">10 MB/s<"), "{svg}");
        assert!(svg.contains("&lt;slow&gt;") && !svg.contains("<slow>"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2, "of what was measured: {svg}");
    }

    #[test]
    fn nothing_measured_is_an_empty_chart() {
        let svg = chart("nothing", &[], &[]);
        assert!(svg.starts_with("<g") && svg.ends_with("</g>\n") && !svg.contains("NaN"), "{svg}");
    }
}
