//! Figures that follow from a layout alone, computed by the code that places the blocks of a run.

use super::{Result, bail, ensure};
use crate::control::Command;
use samite::stage::Region;
use samite::stage::index::Index;
use samite::stage::placement::{Share, figures};
use samite::stage::space::Grid;

/// `index BLOCKS SPREAD FORM`: bytes of the index of this many blocks in three dimensions, in a
/// domain of `SPREAD` points for each in every dimension. They form a `grid`, as those of a
/// decomposition do, or none (`odd`).
pub(super) fn index(command: &Command) -> Result<f64> {
    let (count, spread) = (command.number(1)?, command.number(2)?);
    let is_grid = match command.word(3) {
        "grid" => true,
        "odd" => false,
        other => bail!("`{other}` is not a form of blocks"),
    };
    ensure!(count > 0 && spread > 1, "no blocks, or no room for them");
    let edge = (1..).find(|edge: &u64| edge.pow(3) >= count).unwrap_or(1);
    let blocks: Result<Vec<Region>> = (0..count)
        .map(|block| {
            let place = [block / edge / edge, block / edge % edge, block % edge];
            // Shifted by any amount that depends on the block and is not a grid.
            let aside = |dim: u64| match is_grid {
                true => 0,
                false => (block.wrapping_mul(0x9e37_79b9) >> (4 * dim)) % (spread / 2),
            };
            let lower = [0, 1, 2].map(|dim| place[dim] * spread + aside(dim as u64));
            Ok(Region::at(&lower, &[spread; 3])?)
        })
        .collect();
    let index = Index::new(&blocks?)?;
    ensure!(
        index.is_grid() == is_grid,
        "the blocks are a grid, or are not, against the name of the row"
    );
    Ok(index.bytes() as f64)
}

/// `layout SHAPE WRITERS READERS SERVERS FIGURE`: the study's arrays, cut along their longest side,
/// on servers.
pub(super) fn layout(command: &Command) -> Result<Option<f64>> {
    let number = |index| command.number(index);
    let (writers, readers, servers) = (number(2)?, number(3)?, number(4)?);
    let (shape, cut) = match command.word(1) {
        // 5 x P x 512000
        "matched" => ([5, writers, 512_000], 1),
        // 5 x 512 x 1000 P
        "mismatched" => ([5, 512, 1000 * writers], 2),
        other => bail!("`{other}` is not a layout"),
    };
    let shares: Vec<Share> = (0..u32::try_from(servers)?)
        .map(|block_store| Share {
            block_store,
            weight: 1,
        })
        .collect();
    ensure!(!shares.is_empty(), "no servers");
    let writers = Grid::along(&shape, cut, writers)?;
    let readers = Grid::along(&shape, cut, readers)?;
    let figures = figures::of(&writers, &readers, size_of::<f64>() as u64, &shares, 1)?;
    Ok(Some(match command.word(5) {
        "balance" => figures.max_over_mean,
        "index" => (figures.index_bytes + figures.table_bytes) as f64,
        "writer" => figures.connections_per_writer as f64,
        "reader" => figures.connections_per_reader as f64,
        "server" => figures.connections_per_server as f64,
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &str) -> f64 {
        index(&Command::of(words)).unwrap()
    }

    #[test]
    fn an_index_grows_with_its_blocks_and_not_with_the_domain() {
        for form in ["odd", "grid"] {
            let of = |blocks: u64, spread: u64| bytes(&format!("index {blocks} {spread} {form}"));
            assert_eq!(of(1000, 100), of(1000, 51_200), "{form}");
            assert!(of(8000, 100) > of(1000, 100), "{form}");
        }
        assert!(bytes("index 8000 100 grid") < bytes("index 8000 100 odd") / 10.0);
        assert!(index(&Command::of("index 1000 100 round")).is_err());
    }
}
