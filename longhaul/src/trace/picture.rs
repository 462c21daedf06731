//! A trace as a picture: time from left to right, the layers one below the other, a bar for each request. Bars that overlap in
//! time lie in rows, so that what is in flight at a time is how high they are, and a gap is a wait.

use std::fmt::Write as _;

use volume::Verb;

use super::TracedRequest;
use crate::line_chart::{escape, text};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 20.0;
const ABOVE: f64 = 56.0;
const ROW: f64 = 5.0;

/// Rows of a layer at most; the last has all that is in flight beyond.
const ROWS_MAX: usize = 40;

/// Bars of a part at most, the first: more cannot be told apart.
const BARS_MAX: usize = 6000;

pub(super) fn picture(
    title: &str,
    parts: &[(&str, u64)],
    layers: &[&'static str],
    requests: &[TracedRequest],
) -> String {
    let mut body = String::new();
    text(&mut body, (10.0, 18.0), "font-size=\"14\" font-weight=\"bold\"", title);
    legend(&mut body);
    let begins = || std::iter::once(0).chain(parts.iter().map(|(_, end)| *end));
    let part = |(begin, (_, end)): (u64, &(&str, u64))| {
        let mut of: Vec<_> =
            requests.iter().filter(|one| (begin..*end).contains(&one.from)).copied().collect();
        of.sort_by_key(|one| one.from);
        of.truncate(BARS_MAX);
        of
    };
    let found: Vec<Vec<TracedRequest>> = begins().zip(parts).map(part).collect();
    // One scale for all, so that they can be compared.
    let length =
        found.iter().filter_map(|of| Some(of.iter().map(|one| one.to).max()? - of.first()?.from));
    let scale = (WIDTH - LEFT - RIGHT) / length.max().unwrap_or(1).max(1) as f64;
    let mut y = ABOVE;
    for ((name, _), of) in parts.iter().zip(&found) {
        y = draw(&mut body, (name, y, scale), layers, of);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

/// Draws a part from `y` down; answers where the next begins.
fn draw(
    svg: &mut String,
    (name, mut y, scale): (&str, f64, f64),
    layers: &[&'static str],
    requests: &[TracedRequest],
) -> f64 {
    let begin = requests.first().map_or(0, |one| one.from);
    let end = requests.iter().map(|one| one.to).max().unwrap_or(begin);
    let lasted = (end - begin) as f64 / 1e6;
    let heading = format!("{name}: {} requests in {lasted:.1} ms", requests.len());
    text(svg, (10.0, y), "font-weight=\"bold\"", &heading);
    y += 8.0;
    for (number, layer) in layers.iter().enumerate().rev() {
        let own: Vec<_> = requests.iter().filter(|one| usize::from(one.layer) == number).collect();
        if own.is_empty() {
            continue;
        }
        text(svg, (20.0, y + 10.0), "", layer);
        let mut rows: Vec<u64> = Vec::new();
        for one in own {
            let free = rows.iter().position(|end| *end <= one.from);
            let row = free.unwrap_or(rows.len()).min(ROWS_MAX - 1);
            match rows.get_mut(row) {
                Some(end) => *end = one.to,
                None => rows.push(one.to),
            }
            let x = LEFT + (one.from - begin) as f64 * scale;
            let width = ((one.to - one.from) as f64 * scale).max(0.4);
            // Writing to a String cannot fail.
            let _ = writeln!(
                svg,
                "<rect class=\"bar\" x=\"{x:.2}\" y=\"{:.1}\" width=\"{width:.2}\" height=\"{:.1}\" fill=\"{}\"/>",
                y + ROW * row as f64,
                ROW - 1.0,
                colour(one.verb)
            );
        }
        y += (ROW * rows.len() as f64).max(14.0) + 6.0;
    }
    y + 22.0
}

const fn colour(verb: Verb) -> &'static str {
    match verb {
        Verb::Read => "#0072b2",
        Verb::Write => "#d55e00",
        Verb::Flush => "#000000",
        _ => "#009e73",
    }
}

fn legend(svg: &mut String) {
    let kinds = [
        ("read", Verb::Read),
        ("write", Verb::Write),
        ("flush", Verb::Flush),
        ("other", Verb::Extents),
    ];
    for (place, (name, verb)) in kinds.into_iter().enumerate() {
        let x = 10.0 + 80.0 * place as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"27\" width=\"10\" height=\"10\" fill=\"{}\"/><text x=\"{}\" y=\"36\">{}</text>",
            colour(verb),
            x + 14.0,
            escape(name)
        );
    }
}
