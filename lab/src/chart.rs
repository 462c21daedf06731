//! What programs on mounted volumes do, as a picture: a chart for each program, over the delays of the links.

use longhaul::line_chart::{HEIGHT, Measure, Series, WIDTH, chart_of};

use crate::Failure;

/// Charts stand beside one another.
const COLUMNS: usize = 2;

/// A figure: the delay of the link, what was mounted, the program, and what it told.
struct Figure<'t> {
    delay: &'t str,
    way: &'t str,
    program: &'t str,
    rate: Option<(f64, Measure)>,
}

/// The picture of what `scripts/bench-mounts` has measured, of those programs whose names begin so.
pub(crate) fn picture(results: &str, programs: &[String]) -> Result<String, Failure> {
    let figures = results.lines().map(read).collect::<Result<Vec<_>, _>>()?;
    let delays = in_order(figures.iter().map(|figure| figure.delay));
    let ways = in_order(figures.iter().map(|figure| figure.way));
    let wanted = |program: &&str| programs.iter().any(|begin| program.starts_with(begin.as_str()));
    let shown: Vec<_> =
        in_order(figures.iter().map(|figure| figure.program)).into_iter().filter(wanted).collect();
    let rows = shown.len().div_ceil(COLUMNS);
    let (width, height) = (WIDTH * COLUMNS as f64, HEIGHT * rows as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let labels: Vec<_> = delays.iter().map(|delay| (*delay).to_owned()).collect();
    for (at, program) in shown.into_iter().enumerate() {
        let (right, down) = ((at % COLUMNS) as f64 * WIDTH, (at / COLUMNS) as f64 * HEIGHT);
        let of_program = || figures.iter().filter(|figure| figure.program == program);
        let series = ways.iter().enumerate().map(|(colour, way)| {
            let points = of_program().filter(|figure| figure.way == *way);
            let points = points.filter_map(|figure| {
                let place = delays.iter().position(|delay| *delay == figure.delay)?;
                Some((place, figure.rate?.0))
            });
            Series { name: (*way).to_owned(), points: points.collect(), colour, dashed: false }
        });
        let measure =
            of_program().find_map(|figure| Some(figure.rate?.1)).unwrap_or(Measure::Bytes);
        let chart = chart_of(program, &labels, &series.collect::<Vec<_>>(), measure);
        svg.push_str(&format!("<g transform=\"translate({right} {down})\">\n{chart}</g>\n"));
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// Each once, where it comes first.
fn in_order<'t>(all: impl Iterator<Item = &'t str>) -> Vec<&'t str> {
    all.fold(Vec::new(), |mut known, next| {
        if !known.contains(&next) {
            known.push(next);
        }
        known
    })
}

fn read(line: &str) -> Result<Figure<'_>, Failure> {
    let cells: Vec<_> = line.split('\t').collect();
    let [delay, way, program, told] = cells[..] else {
        return Err(format!("not four cells: {line}").into());
    };
    Ok(Figure { delay, way, program, rate: rate(program, told) })
}

/// A rate as a program told it; of a program that took some time how many of its things it did in a second. `None` if it failed.
fn rate(program: &str, told: &str) -> Option<(f64, Measure)> {
    let number = |text: &str| text.parse::<f64>().ok();
    if let Some(megabytes) = told.strip_suffix(" MB/s") {
        return Some((number(megabytes)? * 1e6, Measure::Bytes));
    }
    if let Some(times) = told.strip_suffix("/s") {
        return Some((number(times)?, Measure::Times));
    }
    let taken = number(told.strip_suffix(" s")?)?;
    let count = program.split(|c: char| !c.is_ascii_digit()).find_map(number).unwrap_or(1.0);
    // It is told by tenths.
    Some((count / taken.max(0.1), Measure::Times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_has_a_chart_for_each_program_with_a_line_for_each_way() {
        let results = "0ms\tus\twrite 256 MiB\t100 MB/s\n0ms\tthem\twrite 256 MiB\t10 MB/s\n\
                       8ms\tus\twrite 256 MiB\t50 MB/s\n8ms\tthem\twrite 256 MiB\tfails\n\
                       0ms\tus\twrite 200 files\t0.5 s\n0ms\tus\tanother\t1.0 s\n";
        let svg = picture(results, &["write".to_owned()]).unwrap();
        assert_eq!(svg.matches(">write ").count(), 2, "{svg}");
        assert!(!svg.contains("another"), "{svg}");
        // Two points of ours and one of theirs, and one of the files.
        assert_eq!(svg.matches("<circle").count(), 4, "{svg}");
        assert!(svg.contains(">100 MB/s<") && svg.contains(">1000/s<"), "{svg}");
        assert!(picture("0ms\tus\twrite\n", &[]).is_err());
    }

    #[test]
    fn time_that_a_program_takes_is_told_as_how_often_it_does_its_thing() {
        let of = |program, told| rate(program, told).map(|(rate, _)| rate);
        assert_eq!(of("write 200 small files", "0.5 s"), Some(400.0));
        assert_eq!(of("SQLite, 100 transactions", "0.0 s"), Some(1000.0));
        assert_eq!(of("write", "12 MB/s"), Some(12e6));
        assert_eq!(of("write", "over 20 s"), None);
        assert_eq!(of("write", "fails"), None);
    }
}
