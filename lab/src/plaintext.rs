//! Looks for the blocks of an image in what a server holds: a sealed volume must hold none.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::Failure;

/// The unit of comparison: the block of the file system in the image.
const BLOCK: usize = 4096;

/// How many blocks of `image` that are not all zeroes occur in `served` at any block border.
pub(crate) fn search(image: &Path, served: &Path) -> Result<(), Failure> {
    let mut plain = HashSet::new();
    blocks(image, |block| {
        plain.insert(block.to_vec());
    })?;
    let mut found = 0_u64;
    let mut looked_at = 0_u64;
    blocks(served, |block| {
        looked_at += 1;
        found += u64::from(plain.contains(block));
    })?;
    println!("{} blocks of plain text sought in {looked_at} blocks, {found} found", plain.len());
    if found == 0 { Ok(()) } else { Err("the server holds plain text".into()) }
}

/// Calls `each` with every block that is not all zeroes.
fn blocks(path: &Path, mut each: impl FnMut(&[u8])) -> Result<(), Failure> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut block = [0; BLOCK];
    loop {
        match file.read_exact(&mut block) {
            Ok(()) if block.iter().any(|byte| *byte != 0) => each(&block),
            Ok(()) => {}
            Err(end) if end.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(why) => return Err(why.into()),
        }
    }
}
