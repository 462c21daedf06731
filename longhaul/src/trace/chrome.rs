//! A trace in the format of Chrome's trace viewer, which Perfetto opens: asynchronous events, each with a number of its own, so that
//! those that overlap have a row each; a process for each layer.

use std::io::{Result, Write};

use super::TracedRequest;

pub(super) fn write(
    layers: &[&'static str],
    requests: &[TracedRequest],
    to: &mut impl Write,
) -> Result<()> {
    to.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    for (number, name) in layers.iter().enumerate() {
        // The top first.
        let rank = layers.len() - number;
        let comma = if number == 0 { "" } else { "," };
        write!(
            to,
            "{comma}\n{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"args\":{{\"name\":\"{rank}. {name}\"}}}}",
            pid(layers.len(), number)
        )?;
    }
    for (id, request) in requests.iter().enumerate() {
        let TracedRequest { layer, verb, span, from, to: end, failed } = *request;
        let head = format!(
            "\"cat\":\"request\",\"name\":\"{verb}\",\"id\":{id},\"pid\":{},\"tid\":1",
            pid(layers.len(), layer.into())
        );
        write!(
            to,
            ",\n{{\"ph\":\"b\",{head},\"ts\":{},\"args\":{{\"at\":{},\"bytes\":{},\"failed\":{failed}}}}}",
            microseconds(from),
            span.at,
            span.len
        )?;
        write!(to, ",\n{{\"ph\":\"e\",{head},\"ts\":{}}}", microseconds(end))?;
    }
    to.write_all(b"\n]}\n")
}

/// Perfetto shows processes by their number: 1 is the top layer.
const fn pid(layers: usize, number: usize) -> usize {
    layers.saturating_sub(number)
}

fn microseconds(nanoseconds: u64) -> String {
    format!("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000)
}
