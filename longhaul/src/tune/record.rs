//! A few requests in a row, recorded: what one request at a time waits for, and what the pipeline makes of it.

use std::sync::Arc;

use bytes::Bytes;
use volume::layer::pipeline::Settings;
use volume::{Durability, Result, Span, Volume};

use crate::pipelined::Pipelined;
use crate::trace::Trace;

/// The size of a request, and how many there are of each kind.
const BLOCK: u64 = 64 << 10;
const ALONE: u64 = 16;
const PIPELINED: u64 = 256;

/// Reads from the front of `volume`, or writes to `scratch`: first one request at a time, then through a pipeline. Answers when each
/// has ended, by the clock of the trace.
pub async fn record(
    volume: Arc<dyn Volume>,
    trace: &Arc<Trace>,
    settings: Settings,
    scratch: Option<Span>,
) -> Result<[u64; 2]> {
    let size = volume.shape().size;
    let (span, writes) = scratch.map_or_else(|| (Span::new(0, size), false), |span| (span, true));
    let top = trace.over("requests, one at a time", Arc::clone(&volume));
    run(&*top, span, ALONE, writes).await?;
    let alone = trace.now();
    let settings = Settings { holes: false, ..settings };
    let pipelined = Pipelined::new("the recorded volume".to_owned(), volume, settings);
    let top = trace.over("requests to the pipeline", pipelined.volume());
    let done = run(&*top, span, PIPELINED, writes).await;
    drop(top);
    pipelined.close().await;
    done.map(|()| [alone, trace.now()])
}

async fn run(volume: &dyn Volume, span: Span, requests: u64, writes: bool) -> Result<()> {
    let block = u64::from(volume.shape().block_size);
    let len = BLOCK.min(span.len / block * block);
    let places = (span.len / len.max(1)).max(1);
    // Noise, so that nothing is left out as zeroes.
    let data = Bytes::from_iter((0..len).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8 | 1));
    for number in 0..requests {
        let at = span.at + number % places * len;
        match writes {
            true => volume.write(at, data.clone(), Durability::Volatile).await?,
            false => drop(volume.read(Span::new(at, len)).await?),
        }
    }
    if writes { volume.flush().await } else { Ok(()) }
}
