//! Numbers of 64 bits.

use std::fs::File;
use std::io;
use std::ops::Range;

use samite::pgas::array::{Array, Pattern};
use samite::pgas::{self, Pgas, Sum};

use super::part::Records;

/// Numbers, little-endian in files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(pub Vec<u64>);

const BYTES: u64 = 8;

impl Records for Words {
    fn borders(_: &File, bytes: Range<u64>, size: u64) -> io::Result<Range<u64>> {
        if !size.is_multiple_of(BYTES) {
            let text = format!("{size} bytes are no whole number of words of {BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(bytes.start.next_multiple_of(BYTES)..bytes.end.next_multiple_of(BYTES))
    }

    fn parse(bytes: Vec<u8>) -> Words {
        let (words, _) = bytes.as_chunks();
        Words(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Uses the sort of a distributed array.
    fn sort(&mut self, pgas: &Pgas) -> pgas::Result<()> {
        let own = self.0.len() as u64;
        let (mut first, mut all) = ([0], [0]);
        pgas.world().exscan(&[own], &mut first, Sum)?;
        pgas.world().all_reduce(&[own], &mut all, Sum)?;
        let mut array = Array::<u64, 1>::new(pgas.world(), Pattern::block(all, pgas.units())?)?;
        array.put(first[0]..first[0] + own, &self.0)?;
        array.sort()?;
        self.0.resize(array.local_len() as usize, 0);
        array.read_local(0, &mut self.0)
    }
}
