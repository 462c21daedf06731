//! How long single writes take, through our own initiator and without a pipeline.
//!
//! Each size has a session of its own: its first write goes by a fresh TCP connection, whose slow start is in
//! the time, and others by the same connection, of which the quickest counts. How often the protocol had to wait
//! is not in the first: `lab link --exchanges` counts that on the wire. That it did not wait for more than it had
//! to is in the second, which is one round trip and what the bytes take.

use std::time::{Duration, Instant};

use bytes::Bytes;
use longhaul::chain::{self, OpenOptions};
use longhaul::uri::Uri;
use volume::{Durability, Span, Volume};

use crate::measure::from_peer;
use crate::{Failure, units};

/// How often the smallest read is tried: the quickest is the round trip.
const TRIES: u32 = 3;

/// How often each size is written again. TCP has found the link long before the last.
const AGAIN: u32 = 10;

/// Which writes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Trips {
    /// How much each writes
    #[arg(long, value_delimiter = ',', value_parser = units::size, default_value = "4K,1M,8M")]
    sizes: Vec<u64>,
}

/// Writes and prints a line for each size.
pub(crate) fn run(wanted: &Trips) -> Result<(), Failure> {
    let uri: Uri = from_peer("LAB_URI")?.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!("bytes\trtt_ms\tfresh_ms\tfresh_rtts\tagain_ms\tagain_rtts");
    runtime.block_on(async {
        for &size in &wanted.sizes {
            println!("{}", one(&uri, size).await?);
        }
        Ok(())
    })
}

async fn one(uri: &Uri, size: u64) -> Result<String, Failure> {
    let chain = chain::open(uri, OpenOptions::default()).await.map_err(|why| why.to_string())?;
    let volume = chain.volume();
    let fresh = write(&*volume, size).await?;
    let mut again = Duration::MAX;
    for _ in 0..AGAIN {
        again = again.min(write(&*volume, size).await?);
    }
    let mut round_trip = Duration::MAX;
    for _ in 0..TRIES {
        let start = Instant::now();
        volume.read(Span::new(0, volume.shape().block_size.into())).await?;
        round_trip = round_trip.min(start.elapsed());
    }
    drop(volume);
    chain.close().await.map_err(|why| why.to_string())?;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let trips = |time: Duration| time.as_secs_f64() / round_trip.as_secs_f64();
    Ok(format!(
        "{size}\t{:.2}\t{:.2}\t{:.2}\t{:.2}\t{:.2}",
        milliseconds(round_trip),
        milliseconds(fresh),
        trips(fresh),
        milliseconds(again),
        trips(again),
    ))
}

async fn write(volume: &dyn Volume, size: u64) -> Result<Duration, Failure> {
    let data = Bytes::from(vec![0xa5; usize::try_from(size)?]);
    let start = Instant::now();
    volume.write(0, data, Durability::Volatile).await?;
    Ok(start.elapsed())
}
