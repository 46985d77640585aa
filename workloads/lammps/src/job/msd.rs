//! The program `lammps-msd`: any number of units that read the stream.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use ndarray::IxDyn;
use samite::Fabric;
use samite::program::{Summary, Units};
use samite::stage::protocol::{Attribute, Policy};
use samite::stage::space::Grid;
use samite::stage::{Element, Region, Stage, StepReader};
use samite_report::{Check, Diagram, Fact, Report, Section, Table};
use serde::{Deserialize, Serialize};

use super::{Error, STREAM, said};
use crate::{Cell, Displacement, MeanSquare, Origin};

/// Maximum relative difference of a displacement from that of LAMMPS.
pub const TOLERANCE: f64 = 1e-10;

/// Steps in the table.
const TABLE_STEPS: usize = 14;

/// Reads every step of the stream of the melt, and computes the mean square displacement of its
/// atoms.
///
/// The units share the atoms of a step by position. Atoms are matched by their id and unwrapped;
/// each result is compared with that of LAMMPS.
#[derive(Clone, Debug, Parser)]
#[command(name = "lammps-msd")]
pub struct Args {
    /// Steps in the table at the end
    #[arg(long, default_value_t = TABLE_STEPS)]
    pub rows: usize,
    /// Where a report with the displacements goes; without it, none is written
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// One step, as one unit found it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Found {
    step: u64,
    /// By melt unit: its atoms' displacements, and the values of LAMMPS.
    boxes: Vec<(Displacement, Option<[f64; 4]>)>,
}

/// The results of a unit: steps, bytes that it read in place and in total, seconds.
type Part = (Vec<Found>, [u64; 2], f64);

/// Runs one unit. Collective over the program.
///
/// # Errors
///
/// [`Error::Wrong`] if a displacement differs from that of LAMMPS, and [`Error::Unchecked`] if none
/// could be compared (after the table was shown); [`Error::Stage`] if the stream or a part of it is
/// lost, [`Error::Empty`] if it had no step.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let own = fabric.identity();
    let units = Units::wait_for_all(fabric)?;
    let mut analysis = Analysis {
        rank: own.rank,
        size: own.size,
        origins: Vec::new(),
        found: Vec::new(),
        read: [0; 2],
    };
    let seconds = analysis.watch(fabric)?;
    let part = postcard::to_stdvec(&(&analysis.found, analysis.read, seconds))?;
    let parts = units.share(&part)?;
    let parts = parts.iter().map(|part| postcard::from_bytes(part));
    let mut parts = parts.collect::<Result<Vec<Part>, _>>()?.into_iter();
    let (mut found, mut read, mut seconds) = parts.next().unwrap_or_default();
    for (others, also, longer) in parts {
        found = merge(found, others);
        read = [read[0] + also[0], read[1] + also[1]];
        seconds = seconds.max(longer);
    }
    if own.rank == 0 {
        writeln!(out, "{}", table(&found).text(args.rows))?;
        let (facts, detail) = (facts(&found, read, own.size, seconds), detail(&found));
        write!(out, "{}", summary(&found, &facts, &detail))?;
        if let Some(path) = &args.report {
            write_report(path, &found, facts, detail)?;
        }
    }
    judge(&found)
}

/// Returns the result of the verification.
fn judge(found: &[Found]) -> Result<(), Error> {
    let mut is_compared = false;
    for step in found {
        let Some(difference) = step.difference() else {
            continue;
        };
        is_compared = true;
        // Not "more than": NaN counts as different, too.
        let is_right = difference <= TOLERANCE;
        if !is_right {
            return Err(Error::Wrong {
                step: step.step,
                difference,
            });
        }
    }
    match is_compared {
        true => Ok(()),
        false => Err(Error::Unchecked(found.len())),
    }
}

/// Ids and unwrapped positions of some atoms.
type Atoms<'s> = (Cow<'s, [i32]>, Vec<[f64; 3]>);

/// One unit of the analysis.
struct Analysis {
    rank: u32,
    size: u32,
    /// By melt unit.
    origins: Vec<Origin>,
    found: Vec<Found>,
    /// Bytes read in place, and in total.
    read: [u64; 2],
}

impl Analysis {
    /// Reads all steps; returns how long they took.
    fn watch(&mut self, fabric: &Fabric) -> Result<f64, Error> {
        let stage = Stage::join(fabric)?;
        let mut reader = stage.reader(STREAM)?;
        let gives_all = matches!(reader.policy(), Policy::Block | Policy::Spill);
        let mut begin = Instant::now();
        let mut next = 0;
        loop {
            let Some(step) = reader.next_step()? else {
                return match self.found.is_empty() {
                    true => Err(Error::Empty),
                    false => Ok(begin.elapsed().as_secs_f64()),
                };
            };
            if self.origins.is_empty() {
                begin = Instant::now();
                // Displacements are relative to the start, which the policy may have dropped.
                if step.number() > 0 {
                    return Err(Error::NoStart(step.number()));
                }
                self.begin(&step)?;
            } else if gives_all && step.number() != next {
                return Err(Error::Missing(next));
            }
            next = step.number() + 1;
            let found = self.look_at(&step)?;
            self.found.push(found);
        }
    }

    /// Stores the initial positions of all atoms: any of them may get into this unit's share.
    fn begin(&mut self, step: &StepReader) -> Result<(), Error> {
        for (rank, block) in blocks(step)? {
            let cell = cell(step, rank)?;
            let (ids, positions) = self.atoms(step, &block, cell)?;
            self.origins.push(Origin::new(&ids, positions.into_iter())?);
        }
        Ok(())
    }

    /// Computes the displacements of this unit's share of the atoms.
    fn look_at(&mut self, step: &StepReader) -> Result<Found, Error> {
        let all = &step.variable("id")?.shape;
        let grid = Grid::along(all, 0, self.size.into()).map_err(samite::stage::Error::from)?;
        let share = grid.part(self.rank.into());
        let mut boxes = Vec::new();
        for (number, (rank, block)) in blocks(step)?.into_iter().enumerate() {
            let mut moved = Displacement::default();
            if let Some(part) = block.intersection(&share).filter(|part| !part.is_empty()) {
                let (ids, positions) = self.atoms(step, &part, cell(step, rank)?)?;
                if let Some(origin) = self.origins.get(number) {
                    moved = origin.displacement(&ids, positions.into_iter())?;
                }
            }
            let name = said::moved(rank);
            let theirs = match step.attribute(&name) {
                None => None,
                Some(Attribute::Reals(values)) if values.len() == 4 => {
                    <[f64; 4]>::try_from(&values[..]).ok()
                }
                Some(_) => return Err(untold(step, &name)),
            };
            boxes.push((moved, theirs));
        }
        Ok(Found {
            step: integer(step, said::STEP)?.unsigned_abs(),
            boxes,
        })
    }

    /// Returns ids and unwrapped positions of the atoms in a range.
    fn atoms<'s>(
        &mut self,
        step: &'s StepReader,
        atoms: &Region,
        cell: Cell,
    ) -> Result<Atoms<'s>, Error> {
        let (from, to) = (atoms.lower()[0], atoms.upper()[0]);
        let triples = Region::new(&[from, 0], &[to, 3]).map_err(samite::stage::Error::from)?;
        let ids = self.take::<i32>(step, "id", atoms)?;
        let images = self.take::<i32>(step, "image", atoms)?;
        let positions = self.take::<f64>(step, "x", &triples)?;
        let positions = positions.as_chunks::<3>().0.iter().zip(images.iter());
        let positions = positions.map(|(position, image)| cell.unwrap(*position, *image));
        Ok((ids, positions.collect()))
    }

    /// Returns a box of a variable in place, if it is inside one block, otherwise a copy.
    fn take<'s, T: Element>(
        &mut self,
        step: &'s StepReader,
        name: &str,
        region: &Region,
    ) -> Result<Cow<'s, [T]>, Error> {
        let bytes = region
            .bytes(T::DTYPE.bytes())
            .map_err(samite::stage::Error::from)?;
        self.read[1] += bytes;
        if let Some(slice) = step
            .view::<T>(name, region)?
            .and_then(|view| view.to_slice())
        {
            self.read[0] += bytes;
            return Ok(Cow::Borrowed(slice));
        }
        let copy = step.get::<T, IxDyn>(name, region)?;
        Ok(Cow::Owned(copy.into_raw_vec_and_offset().0))
    }
}

/// Returns the melt units' blocks of atoms that are not empty, by rank. Servers store them in
/// pieces; these are joined.
fn blocks(step: &StepReader) -> Result<Vec<(u32, Region)>, Error> {
    let pieces = step.blocks("id")?;
    let pieces = pieces.map(|(rank, piece)| (rank, [piece.lower()[0], piece.upper()[0]]));
    let mut blocks = Vec::new();
    for (rank, [from, to]) in joined(pieces) {
        let whole = Region::new(&[from], &[to]).map_err(samite::stage::Error::from)?;
        blocks.push((rank, whole));
    }
    Ok(blocks)
}

/// Joins the pieces of each rank, from the first to the last position: its block has no gaps.
fn joined(pieces: impl Iterator<Item = (u32, [u64; 2])>) -> BTreeMap<u32, [u64; 2]> {
    let mut blocks = BTreeMap::new();
    for (rank, [from, to]) in pieces {
        let block = blocks.entry(rank).or_insert([from, to]);
        *block = [block[0].min(from), block[1].max(to)];
    }
    blocks
}

/// Merges the steps that both units have, with the atoms of both: if the policy drops steps, they
/// may have taken different ones.
fn merge(found: Vec<Found>, others: Vec<Found>) -> Vec<Found> {
    let mut others: BTreeMap<u64, Found> =
        others.into_iter().map(|step| (step.step, step)).collect();
    let both = found.into_iter().filter_map(|mut all| {
        let other = others.remove(&all.step)?;
        for (all, other) in all.boxes.iter_mut().zip(other.boxes) {
            all.0 = all.0.merge(other.0);
        }
        Some(all)
    });
    both.collect()
}

fn untold(step: &StepReader, name: &str) -> Error {
    Error::Untold {
        step: step.number(),
        name: name.to_owned(),
    }
}

fn integer(step: &StepReader, name: &str) -> Result<i64, Error> {
    match step.attribute(name) {
        Some(Attribute::Integer(value)) => Ok(*value),
        _ => Err(untold(step, name)),
    }
}

fn cell(step: &StepReader, rank: u32) -> Result<Cell, Error> {
    let name = said::cell(rank);
    match step.attribute(&name) {
        Some(Attribute::Reals(corners)) => match corners[..] {
            [x, y, z, to_x, to_y, to_z] => Ok(Cell {
                lower: [x, y, z],
                upper: [to_x, to_y, to_z],
            }),
            _ => Err(untold(step, &name)),
        },
        _ => Err(untold(step, &name)),
    }
}

impl Found {
    /// Returns the displacement of the atoms of all boxes.
    fn all(&self) -> Displacement {
        let boxes = self.boxes.iter().map(|(moved, _)| *moved);
        boxes.reduce(Displacement::merge).unwrap_or_default()
    }

    /// Returns the value of LAMMPS for the atoms of all boxes, if it was computed.
    fn theirs(&self) -> Option<f64> {
        let of = |(moved, theirs): &(Displacement, Option<[f64; 4]>)| {
            theirs.map(|theirs| theirs[3] * moved.atoms as f64)
        };
        let sum: Option<f64> = self.boxes.iter().map(of).sum();
        sum.map(|sum| sum / self.all().atoms.max(1) as f64)
    }

    /// Returns the largest relative difference of the four numbers of a box from those of LAMMPS;
    /// `None` if LAMMPS did not compute them.
    fn difference(&self) -> Option<f64> {
        let of = |(moved, theirs): &(Displacement, Option<[f64; 4]>)| {
            let MeanSquare { along, total } = moved.mean();
            let ours = along.into_iter().chain([total]);
            let each = ours.zip((*theirs)?).map(|(ours, theirs)| {
                let apart = (ours - theirs).abs();
                let relative = apart / theirs.abs();
                // NaN counts as the largest possible difference.
                match apart == 0.0 {
                    true => 0.0,
                    false if relative.is_nan() => f64::INFINITY,
                    false => relative,
                }
            });
            each.reduce(f64::max)
        };
        let all: Option<Vec<f64>> = self.boxes.iter().map(of).collect();
        all?.into_iter().reduce(f64::max)
    }
}

/// Returns a table of all steps.
fn table(found: &[Found]) -> Table {
    let mut table = Table::new(["step", "MSD", "compute msd", "difference"]);
    let or_nothing = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    for step in found {
        table.add([
            step.step.to_string(),
            format!("{:.10}", step.all().mean().total),
            or_nothing(step.theirs().map(|theirs| format!("{theirs:.10}"))),
            or_nothing(step.difference().map(|apart| format!("{apart:.1e}"))),
        ]);
    }
    table
}

/// Returns what there is to know of a run.
fn facts(found: &[Found], read: [u64; 2], readers: u32, seconds: f64) -> Vec<Fact> {
    let (boxes, atoms) = found
        .last()
        .map_or((0, 0), |last| (last.boxes.len(), last.all().atoms));
    let [in_place, all] = read.map(|bytes| bytes / 1_000_000);
    let staged = read[1] as f64 / seconds / 1e9;
    vec![
        Fact::new("atoms", format!("{atoms} in {boxes} boxes")),
        Fact::new("units", format!("{boxes} simulate, {readers} read")),
        Fact::new("read in place", format!("{in_place} of {all} MB")),
        Fact::new("time", format!("{seconds:.3} s")),
        Fact::new("staged", format!("{staged:.3} GB/s")),
    ]
}

/// Returns what the verification compared.
fn detail(found: &[Found]) -> String {
    let compared: Vec<f64> = found.iter().filter_map(Found::difference).collect();
    let largest = compared.iter().copied().fold(0.0, f64::max);
    format!(
        "{} of {} steps compared with LAMMPS' own, the largest difference is {largest:.1e} (at most {TOLERANCE:e})",
        compared.len(),
        found.len()
    )
}

fn summary(found: &[Found], facts: &[Fact], detail: &str) -> Summary {
    let title = "LAMMPS, and the mean square displacement of its atoms by a stream";
    let summary = facts.iter().fold(Summary::new(title), |summary, fact| {
        summary.row(&fact.name, &fact.value)
    });
    summary.verification(judge(found).is_ok(), detail)
}

fn write_report(
    path: &Path,
    found: &[Found],
    facts: Vec<Fact>,
    detail: String,
) -> Result<(), Error> {
    let diagram = |title: &str, value: &dyn Fn(&Found) -> Option<f64>| {
        let points = found
            .iter()
            .filter_map(|one| Some((one.step as f64, value(one)?)));
        Diagram::new(title, "step", points.collect())
    };
    let total = |found: &Found| Some(found.all().mean().total);
    let report = Report {
        title: "LAMMPS",
        summary: "The mean square displacement of the atoms of a melt, which another program \
                  computed from a stream while LAMMPS ran.",
        checks: &[Check::new(
            "equal to compute msd",
            judge(found).is_ok(),
            detail,
        )],
        field: None,
        facts: &[("Run", facts)],
        sections: &[Section {
            title: "Displacement over steps".into(),
            diagrams: vec![
                diagram("Mean square displacement", &total),
                diagram("Relative difference from LAMMPS", &Found::difference)
                    .of_differences()
                    .logarithmic(),
            ],
            bars: Vec::new(),
            table: Some(table(found)),
        }],
    };
    Ok(report.write(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(squares: [f64; 3], theirs: Option<[f64; 4]>) -> (Displacement, Option<[f64; 4]>) {
        (Displacement { atoms: 2, squares }, theirs)
    }

    fn found(boxes: Vec<(Displacement, Option<[f64; 4]>)>) -> Found {
        Found { step: 5, boxes }
    }

    #[test]
    fn the_largest_difference_of_all_boxes_counts() {
        let right = moved([2.0, 4.0, 6.0], Some([1.0, 2.0, 3.0, 6.0]));
        let nothing = moved([0.0; 3], Some([0.0; 4]));
        let all = found(vec![right, nothing]);
        assert_eq!((all.difference(), all.theirs()), (Some(0.0), Some(3.0)));
        let off = moved([2.0, 4.0, 6.0], Some([1.0, 2.5, 3.0, 6.0]));
        assert_eq!(found(vec![right, off]).difference(), Some(0.2));
        let never = moved([2.0, 0.0, 0.0], Some([0.0; 4]));
        assert_eq!(found(vec![never, right]).difference(), Some(f64::INFINITY));
        let none = moved([f64::NAN; 3], Some([1.0; 4]));
        assert_eq!(found(vec![right, none]).difference(), Some(f64::INFINITY));
        assert_eq!(found(vec![right, moved([0.0; 3], None)]).difference(), None);
    }

    #[test]
    fn only_what_was_compared_and_is_equal_is_right() {
        let right = moved([2.0, 4.0, 6.0], Some([1.0, 2.0, 3.0, 6.0]));
        let off = moved([2.0, 4.0, 6.0], Some([1.0, 2.0, 3.000_001, 6.0]));
        let silent = moved([2.0, 4.0, 6.0], None);
        let nothing = moved([f64::NAN; 3], Some([f64::NAN; 4]));
        assert!(judge(&[found(vec![right]), found(vec![silent])]).is_ok());
        for wrong in [off, nothing] {
            let judged = judge(&[found(vec![right]), found(vec![right, wrong])]);
            assert!(
                matches!(judged, Err(Error::Wrong { step: 5, .. })),
                "{judged:?}"
            );
        }
        for unchecked in [vec![], vec![found(vec![silent])], vec![found(vec![])]] {
            let (judged, steps) = (judge(&unchecked), unchecked.len());
            assert!(
                matches!(judged, Err(Error::Unchecked(of)) if of == steps),
                "{judged:?}"
            );
            let summary = summary(&unchecked, &[], &detail(&unchecked)).to_string();
            assert!(summary.contains("FAILED"), "{summary}");
        }
    }

    #[test]
    fn pieces_of_a_block_are_put_together() {
        let pieces = [(1, [16, 20]), (0, [4, 8]), (0, [0, 4]), (1, [8, 16])];
        let expected = BTreeMap::from([(0, [0, 8]), (1, [8, 20])]);
        assert_eq!(joined(pieces.into_iter()), expected);
    }

    #[test]
    fn parts_of_different_steps_are_not_merged() {
        let of = |steps: &[u64]| -> Vec<Found> {
            let boxes = vec![moved([1.0; 3], None)];
            let one = |&step: &u64| Found {
                step,
                boxes: boxes.clone(),
            };
            steps.iter().map(one).collect()
        };
        let both = merge(of(&[0, 3, 5, 6]), of(&[0, 5, 6, 8]));
        let steps: Vec<u64> = both.iter().map(|step| step.step).collect();
        assert_eq!(steps, [0, 5, 6]);
        assert!(both.iter().all(|step| step.all().atoms == 4));
    }

    #[test]
    fn a_report_has_the_displacements() {
        let steps: Vec<Found> = (0..100)
            .map(|step| Found {
                step,
                ..found(vec![moved([step as f64; 3], None)])
            })
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.html");
        let facts = facts(&steps, [1_000_000, 2_000_000], 3, 1.0);
        write_report(&path, &steps, facts, detail(&steps)).unwrap();
        let html = std::fs::read_to_string(path).unwrap();
        for text in ["0 of 100 steps compared", "1 of 2 MB", "<td>99</td>"] {
            assert!(html.contains(text), "{text}? {html}");
        }
        // Nothing was compared, so there is no difference to draw.
        assert!(html.contains("<polyline"));
        assert!(!html.contains("Relative difference"));
        assert!(html.contains("class=\"failed\""));
    }
}
