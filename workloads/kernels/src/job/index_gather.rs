//! The program `index-gather`: reads random elements of a table that is distributed over the units.

use std::io::Write;

use clap::Parser;
use samite::Fabric;
use samite::pgas::{Pgas, Segment};
use samite::program::Summary;

use super::{Access, judge, rate, timed, total};
use crate::spread::Blocks;
use crate::{Error, random_places};

/// Gathers random elements of a table over all units, like the index-gather of the bale kernels.
#[derive(Clone, Debug, Parser)]
#[command(name = "index-gather")]
pub struct Args {
    /// Elements of the table per unit
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub elements: u64,
    /// Elements that each unit gathers
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub reads: u64,
    /// How elements travel [default: one run of each]
    #[arg(long = "way", value_enum)]
    pub ways: Vec<Access>,
}

/// Runs one unit. Collective over the program.
///
/// # Errors
///
/// [`Error::Wrong`] if an element is not that of the table; errors of the fabric (lost units,
/// memory).
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let pgas = Pgas::new(fabric)?;
    let (me, units) = (pgas.me().0, pgas.units());
    let elements = args.elements * u64::from(units);
    let blocks = Blocks::new(elements, units);
    let segment: Segment<u64> = pgas.world().allocate(blocks.longest())?;
    let own: Vec<u64> = blocks.part(me).map(element).collect();
    segment.write_local(0, &own)?;
    let places: Vec<u64> = random_places(me, elements)
        .take(args.reads as usize)
        .collect();
    let reads = args.reads * u64::from(units);
    let mut summary = Summary::new("Index-gather")
        .row("elements", elements)
        .row("reads", reads)
        .row("units", units);
    let mut wrong = 0;
    for way in Access::chosen(&args.ways) {
        // 0 is no element of the table, so an element that was not gathered is noticed.
        let mut gathered = vec![0; places.len()];
        let time = timed(&pgas, || match way {
            Access::Plain => plain(&segment, &blocks, &places, &mut gathered),
            Access::Aggregated => aggregated(&segment, &blocks, &places, &mut gathered),
        })?;
        let own = gathered
            .iter()
            .zip(&places)
            .filter(|(found, place)| **found != element(**place));
        wrong += total(&pgas, own.count() as u64)?;
        summary = summary.row(way, rate(reads, time));
    }
    if me == 0 {
        let detail = format_args!("{wrong} elements are not those of the table");
        write!(out, "{}", summary.verification(wrong == 0, detail))?;
    }
    judge(wrong, "elements")
}

/// Returns the table's element at an index; never 0, the value of an element that was not gathered.
fn element(place: u64) -> u64 {
    !place
}

fn plain(
    segment: &Segment<u64>,
    blocks: &Blocks,
    places: &[u64],
    gathered: &mut [u64],
) -> Result<(), Error> {
    for (place, gathered) in places.iter().zip(gathered) {
        let at = blocks.locate(*place);
        *gathered = segment.get_value(at.rank, at.index)?;
    }
    Ok(())
}

fn aggregated(
    segment: &Segment<u64>,
    blocks: &Blocks,
    places: &[u64],
    gathered: &mut [u64],
) -> Result<(), Error> {
    let places: Vec<_> = places.iter().map(|place| blocks.locate(*place)).collect();
    Ok(segment.get_scattered(&places, gathered)?)
}
