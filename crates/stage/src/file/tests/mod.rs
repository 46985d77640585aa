use super::*;
use crate::protocol::{Block, Layout, Variable};
use crate::space::{Dims, Grid, Strided, copy_box};
use crate::{Dtype, Region, SpaceError};
use std::fs;
use tempfile::TempDir;

/// Every value depends on its step and its position in the array.
fn value(step: Step, index: u64) -> f64 {
    step as f64 * 1e9 + index as f64
}

fn array(step: Step, shape: &[u64]) -> Vec<f64> {
    let count: u64 = shape.iter().product();
    (0..count).map(|index| value(step, index)).collect()
}

/// Returns a box of a dense array, the simple way.
fn cut(all: &[f64], shape: &[u64], region: &Region) -> Vec<f64> {
    let mut part = vec![f64::NAN; region.volume().unwrap() as usize];
    let from = Strided::dense(Region::whole(shape).unwrap()).unwrap();
    let to = Strided::dense(region.clone()).unwrap();
    copy_box(
        8,
        bytemuck::cast_slice(all),
        &from,
        bytemuck::cast_slice_mut(&mut part),
        &to,
    )
    .unwrap();
    part
}

fn variable(name: &str, dtype: Dtype, shape: &[u64], blocks: &[Region]) -> Variable {
    let block = |region: &Region| Block {
        region: region.clone(),
        slot: 0,
    };
    Variable {
        name: name.into(),
        dtype,
        shape: Dims::from_slice(shape),
        attributes: vec![("unit".into(), Attribute::Text("K".into()))],
        blocks: blocks.iter().map(block).collect(),
    }
}

/// Writes `u`, in the given blocks, and a small `flags` of the rank.
fn append(writer: &mut StepFile, step: Step, rank: u32, shape: &[u64], regions: &[Region]) {
    let all = array(step, shape);
    let parts: Vec<Vec<f64>> = regions
        .iter()
        .map(|region| cut(&all, shape, region))
        .collect();
    let flags = [rank as u8, step as u8, 7];
    let own = Region::at(&[u64::from(rank) * 3], &[3]).unwrap();
    let layout = Layout {
        variables: vec![
            variable("u", Dtype::F64, shape, regions),
            variable("flags", Dtype::U8, &[3 * 64], &[own]),
        ],
    };
    let mut blocks: Vec<&[u8]> = parts
        .iter()
        .map(|part| bytemuck::cast_slice(part))
        .collect();
    blocks.push(&flags);
    let attributes = [("time".to_owned(), Attribute::Real(step as f64 / 8.0))];
    let content = Content {
        layout: &layout,
        blocks: &blocks,
        attributes: &attributes,
    };
    writer.append(step, content).unwrap();
}

/// The steps of two ranks, one with two blocks; the shape changes at step 2.
const RANKS: u32 = 2;

fn parts_of(step: Step, rank: u32) -> (Vec<u64>, Vec<Region>) {
    let shape = if step < 2 { vec![7, 9] } else { vec![6, 5, 4] };
    let mut grid = vec![1; shape.len()];
    (grid[0], grid[1]) = (1, 3);
    let grid = Grid::new(&shape, &grid).unwrap();
    let mine = if rank == 0 { vec![0, 2] } else { vec![1] };
    (
        shape,
        mine.into_iter().map(|part| grid.part(part)).collect(),
    )
}

fn write(folder: &Path, steps: std::ops::Range<Step>) -> Vec<StepFile> {
    let writer = |rank| {
        let mut writer = StepFile::create(folder, "field", rank, RANKS).unwrap();
        for step in steps.clone() {
            let (shape, regions) = parts_of(step, rank);
            append(&mut writer, step, rank, &shape, &regions);
        }
        writer
    };
    (0..RANKS).map(writer).collect()
}

/// Reads boxes of a step, all over the array.
fn is_right(archive: &Archive, step: Step) {
    let stored = archive.step(step).unwrap();
    let (shape, _) = parts_of(step, 0);
    assert_eq!(stored.variable("u").unwrap().shape.as_slice(), shape);
    assert_eq!(
        stored.attributes(),
        [("time".into(), Attribute::Real(step as f64 / 8.0))]
    );
    let all = array(step, &shape);
    let mut random = fastrand::Rng::with_seed(step);
    for round in 0..50 {
        let corners = shape.iter().map(|&length| {
            let from = random.u64(0..length);
            (from, random.u64(from + 1..=length))
        });
        let (lower, upper): (Vec<_>, Vec<_>) = corners.unzip();
        let region = match round {
            0 => Region::whole(&shape).unwrap(),
            _ => Region::new(&lower, &upper).unwrap(),
        };
        let read: Vec<f64> = stored.read("u", &region).unwrap();
        assert_eq!(read, cut(&all, &shape, &region), "step {step}, {region}");
    }
    for rank in 0..RANKS {
        let own = Region::at(&[u64::from(rank) * 3], &[3]).unwrap();
        let flags: Vec<u8> = stored.read("flags", &own).unwrap();
        assert_eq!(flags, [rank as u8, step as u8, 7]);
    }
    stored.check().unwrap();
}

#[test]
fn any_box_of_any_step_comes_back() {
    let folder = TempDir::new().unwrap();
    let writers = write(folder.path(), 0..4);
    let running = Archive::open(folder.path()).unwrap();
    assert!(!running.is_finished());
    for writer in writers {
        writer.finish().unwrap();
    }
    let ended = Archive::open(folder.path()).unwrap();
    assert!(ended.is_finished());
    for archive in [running, ended] {
        assert_eq!(
            (archive.stream(), archive.steps()),
            ("field", &[0, 1, 2, 3][..])
        );
        (0..4).for_each(|step| is_right(&archive, step));
    }
}

#[test]
fn a_reader_follows_the_writers() {
    let folder = TempDir::new().unwrap();
    assert!(matches!(
        Archive::open(folder.path()),
        Err(FileError::NotAStream { .. })
    ));
    let mut first = StepFile::create(folder.path(), "field", 0, RANKS).unwrap();
    let mut archive = Archive::open(folder.path()).unwrap();
    let put = |writer: &mut StepFile, step, rank| {
        let (shape, regions) = parts_of(step, rank);
        append(writer, step, rank, &shape, &regions);
    };
    put(&mut first, 0, 0);
    archive.refresh().unwrap();
    assert!(archive.steps().is_empty(), "rank 1 has not begun");
    let mut second = StepFile::create(folder.path(), "field", 1, RANKS).unwrap();
    put(&mut first, 1, 0);
    put(&mut second, 0, 1);
    archive.refresh().unwrap();
    assert_eq!(archive.steps(), [0]);
    put(&mut second, 1, 1);
    archive.refresh().unwrap();
    is_right(&archive, 1);
    first.finish().unwrap();
    archive.refresh().unwrap();
    assert!(!archive.is_finished());
    second.finish().unwrap();
    archive.refresh().unwrap();
    assert!(archive.is_finished());
    assert_eq!(archive.steps(), [0, 1]);
}

/// After a crash at any point, the file has the steps with complete records, and the writer
/// continues after them.
#[test]
fn a_file_that_ends_anywhere_has_its_complete_steps() {
    let folder = TempDir::new().unwrap();
    drop(write(folder.path(), 0..4));
    let (path, other) = (file_of(folder.path(), 0), file_of(folder.path(), 1));
    let (whole, theirs) = (fs::read(&path).unwrap(), fs::read(&other).unwrap());
    let ends: Vec<u64> = {
        let archive = Archive::open(folder.path()).unwrap();
        let scan = archive.scan_of(0);
        scan.records
            .iter()
            .map(|record| scan.frames.head(record.1).unwrap().unwrap().end().unwrap())
            .collect()
    };
    assert_eq!(ends[3], whole.len() as u64);
    for length in (0..whole.len())
        .step_by(61)
        .chain(ends.iter().map(|end| *end as usize))
    {
        fs::write(&path, &whole[..length]).unwrap();
        let complete = ends.iter().filter(|end| **end <= length as u64).count() as u64;
        let archive = Archive::open(folder.path()).unwrap();
        assert_eq!(
            archive.steps(),
            (0..complete).collect::<Vec<_>>(),
            "cut at {length}"
        );
        if let Some(last) = complete.checked_sub(1) {
            is_right(&archive, last);
        }
        let mut writer = StepFile::resume(folder.path(), "field", 0, RANKS).unwrap();
        assert_eq!(writer.last(), complete.checked_sub(1));
        for step in complete..4 {
            let (shape, regions) = parts_of(step, 0);
            append(&mut writer, step, 0, &shape, &regions);
        }
        writer.finish().unwrap();
        is_right(&Archive::open(folder.path()).unwrap(), 3);
        assert_eq!(fs::read(&other).unwrap(), theirs);
    }
}

/// All damage is detected: with any byte of the file changed, reads give the same values, an error,
/// or fewer steps.
#[test]
fn damage_is_seen() {
    let folder = TempDir::new().unwrap();
    for writer in write(folder.path(), 0..2) {
        writer.finish().unwrap();
    }
    let path = file_of(folder.path(), 0);
    let whole = fs::read(&path).unwrap();
    let (mut errors, mut harmless) = (0, 0);
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        let Ok(archive) = Archive::open(folder.path()) else {
            errors += 1;
            continue;
        };
        for step in archive.steps() {
            match archive
                .step(*step)
                .and_then(|stored| stored.check().map(|()| stored))
            {
                Err(_) => errors += 1,
                Ok(stored) => {
                    let region = stored.variable("u").unwrap().whole().unwrap();
                    let (shape, _) = parts_of(*step, 0);
                    assert_eq!(
                        stored.read::<f64>("u", &region).unwrap(),
                        array(*step, &shape),
                        "byte {at}"
                    );
                    harmless += 1;
                }
            }
        }
    }
    assert!(errors > 1000 && harmless > 1000, "{errors} {harmless}");
}

#[test]
fn wrong_questions_get_answers() {
    let folder = TempDir::new().unwrap();
    let mut writers = write(folder.path(), 0..1);
    let archive = Archive::open(folder.path()).unwrap();
    let missing = archive.step(3).unwrap_err().to_string();
    assert!(
        missing.ends_with("has no step 3; it has steps 0 to 0"),
        "{missing}"
    );
    let stored = archive.step(0).unwrap();
    let region = |lower: &[u64], upper: &[u64]| Region::new(lower, upper).unwrap();
    let error = |name: &str, region: &Region| stored.read::<f64>(name, region).unwrap_err();
    let inside = region(&[0, 0], &[1, 1]);
    assert_eq!(
        error("v", &inside).to_string(),
        "step 0 has no variable `v`; it has u, flags"
    );
    assert_eq!(
        stored.read::<i64>("u", &inside).unwrap_err().to_string(),
        "`u` has elements of type f64, but i64 was requested: read it as f64"
    );
    for outside in [
        region(&[0, 0], &[1, 10]),
        region(&[0], &[1]),
        region(&[0, 0], &[1 << 40, 1 << 40]),
    ] {
        let FileError::Space(error) = error("u", &outside) else {
            panic!("{outside} is read");
        };
        assert!(matches!(*error, SpaceError::Outside { .. }));
    }
    let Err(FileError::Hole { hole, .. }) = stored.read::<u8>("flags", &region(&[0], &[20])) else {
        panic!("a hole is read");
    };
    assert!(region(&[6], &[20]).contains(&hole));
    let short = stored.read_into("u", &inside, &mut [0; 7]).unwrap_err();
    assert!(
        short
            .to_string()
            .ends_with("needs 8 bytes, but 7 were given"),
        "{short}"
    );

    let layout = Layout {
        variables: vec![variable("u", Dtype::F64, &[2], &[region(&[0], &[2])])],
    };
    let mut append = |step, blocks: &[&[u8]]| {
        let content = Content {
            layout: &layout,
            blocks,
            attributes: &[],
        };
        writers[0].append(step, content)
    };
    assert!(matches!(
        append(0, &[&[0; 16]]),
        Err(FileError::Order {
            step: 0,
            last: Some(0),
            ..
        })
    ));
    for wrong in [&[][..], &[&[0; 15][..]], &[&[0; 16][..], &[]]] {
        assert!(matches!(append(1, wrong), Err(FileError::Content { .. })));
    }
    append(1, &[&[0; 16]]).unwrap();
    drop(writers);
    let stranger = StepFile::resume(folder.path(), "other", 0, RANKS).unwrap_err();
    assert!(matches!(stranger, FileError::Stranger { .. }), "{stranger}");
}

#[test]
fn ranks_that_disagree_are_named() {
    let folder = TempDir::new().unwrap();
    for (rank, dtype) in [(0, Dtype::I64), (1, Dtype::F64)] {
        let own = Region::at(&[u64::from(rank)], &[1]).unwrap();
        let layout = Layout {
            variables: vec![variable("n", dtype, &[2], &[own])],
        };
        let mut writer = StepFile::create(folder.path(), "field", rank, 2).unwrap();
        let content = Content {
            layout: &layout,
            blocks: &[&[0; 8]],
            attributes: &[],
        };
        writer.append(0, content).unwrap();
    }
    let archive = Archive::open(folder.path()).unwrap();
    let said = archive.step(0).unwrap_err().to_string();
    assert_eq!(
        said,
        "ranks 0 and 1 wrote `n` as i64 [2] and f64 [2]: write it the same way in all ranks"
    );
}

/// The bytes of version 2: changing them needs another version.
#[test]
fn the_format_is_what_it_was() {
    let folder = TempDir::new().unwrap();
    for writer in write(folder.path(), 0..1) {
        writer.finish().unwrap();
    }
    let mut bytes = fs::read(file_of(folder.path(), 1)).unwrap();
    assert_eq!(&bytes[..16], b"samite\r\n\x02\0\0\0\x01\0\0\0");
    assert_eq!(
        &bytes[128..138],
        b"\x05field\x01\x02\0\0",
        "postcard: length, text, rank, ranks, run, life"
    );
    // Without the mark of the writer, and the random parts: the id and, with it, the checksum of
    // each head.
    bytes[64..96].fill(0);
    for head in bytes
        .chunks_exact_mut(128)
        .filter(|head| head.starts_with(b"samite\r\n"))
    {
        head[40..48].fill(0);
        head[56..64].fill(0);
    }
    assert_eq!(xxhash_rust::xxh3::xxh3_64(&bytes), GOLDEN);
}

const GOLDEN: u64 = 30_978_975_233_339_568;

/// Large enough for every path of [`fetch`](super::fetch): rows read directly into their places,
/// gaps read and skipped, cuts.
#[test]
fn boxes_of_large_blocks_come_back() {
    let shape = [4, 10, 30_000];
    let whole = Region::whole(&shape).unwrap();
    let all = array(1, &shape);
    let folder = TempDir::new().unwrap();
    let layout = Layout {
        variables: vec![variable(
            "u",
            Dtype::F64,
            &shape,
            std::slice::from_ref(&whole),
        )],
    };
    let content = Content {
        layout: &layout,
        blocks: &[bytemuck::cast_slice(&all)],
        attributes: &[],
    };
    let mut writer = StepFile::create(folder.path(), "field", 0, 1).unwrap();
    writer.append(1, content).unwrap();
    let mut writer = writer.without_checksums();
    writer.append(2, content).unwrap();
    let archive = Archive::open(folder.path()).unwrap();
    for (lower, upper) in [
        ([0, 0, 0], [4, 10, 30_000]),      // all of it
        ([1, 0, 0], [3, 10, 30_000]),      // one run
        ([2, 3, 100], [3, 4, 20_000]),     // a part of a row
        ([0, 1, 100], [4, 9, 20_000]),     // long rows, far apart
        ([0, 0, 5], [4, 10, 29_998]),      // small gaps
        ([0, 0, 29_998], [4, 10, 30_000]), // single points, far apart
        ([3, 9, 0], [4, 10, 1]),
    ] {
        let region = Region::new(&lower, &upper).unwrap();
        for step in [1, 2] {
            let read: Vec<f64> = archive.step(step).unwrap().read("u", &region).unwrap();
            assert!(
                read == cut(&all, &shape, &region),
                "{region} of step {step}"
            );
        }
    }
}

#[test]
fn dimensions_above_32_bits_are_nothing_special() {
    let shape = [1 << 40, 3];
    let at = |from: u64| Region::at(&[from, 0], &[2, 3]).unwrap();
    let (low, high) = (at(0), at((1 << 40) - 2));
    let values: Vec<f64> = (0..12).map(|index| value(7, index)).collect();
    let layout = Layout {
        variables: vec![variable(
            "u",
            Dtype::F64,
            &shape,
            &[high.clone(), low.clone()],
        )],
    };
    let content = Content {
        layout: &layout,
        blocks: &[
            bytemuck::cast_slice(&values[..6]),
            bytemuck::cast_slice(&values[6..]),
        ],
        attributes: &[],
    };
    let folder = TempDir::new().unwrap();
    let mut writer = StepFile::create(folder.path(), "field", 0, 1).unwrap();
    writer.append(7, content).unwrap();
    let archive = Archive::open(folder.path()).unwrap();
    let stored = archive.step(7).unwrap();
    assert_eq!(stored.read::<f64>("u", &high).unwrap(), values[..6]);
    assert_eq!(stored.read::<f64>("u", &low).unwrap(), values[6..]);
    // The whole is larger than any memory: the hole is found before anything is allocated.
    let whole = Region::whole(&shape).unwrap();
    assert!(matches!(
        stored.read::<f64>("u", &whole),
        Err(FileError::Hole { .. })
    ));
}

mod disk;
mod runs;
