//! Files with other bytes than were written: with wrong checksums, and with right ones.

use samite_stage::file::{Archive, Content, StepFile};
use samite_stage::protocol::{Attribute, Block, Layout, Variable};
use samite_stage::space::Dims;
use samite_stage::{Dtype, Region};
use samite_testkit::fuzz::{self, Rng, mutate, word};
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

const ALIGN: usize = 128;

/// Bytes of a file of two steps.
fn written(is_finished: bool) -> Vec<u8> {
    let folder = TempDir::new().expect("a folder");
    let mut writer = StepFile::create(folder.path(), "s", 0, 1).expect("a file");
    let values: Vec<f64> = (0..32).map(f64::from).collect();
    let whole = Region::whole(&[4, 8]).expect("a box");
    let block = Block {
        region: whole,
        slot: 0,
    };
    let variable = Variable {
        name: "u".into(),
        dtype: Dtype::F64,
        shape: Dims::from_slice(&[4, 8]),
        attributes: vec![("unit".into(), Attribute::Text("K".into()))],
        blocks: vec![block],
    };
    let layout = Layout {
        variables: vec![variable],
    };
    for step in [0, 3] {
        let content = Content {
            layout: &layout,
            blocks: &[bytemuck::cast_slice(&values)],
            attributes: &[("time".into(), Attribute::Real(0.5))],
        };
        writer.append(step, content).expect("a step");
    }
    if is_finished {
        writer.finish().expect("an end");
    }
    fs::read(folder.path().join("rank-0.samite")).expect("the file")
}

/// Where frames begin.
fn heads(bytes: &[u8]) -> Vec<usize> {
    let starts = (0..bytes.len().saturating_sub(63)).step_by(ALIGN);
    starts
        .filter(|at| bytes[*at..].starts_with(b"samite\r\n"))
        .collect()
}

/// Changes a file; with the checksums put right where that makes sense.
fn damage(random: &mut Rng, bytes: &mut Vec<u8>) {
    if random.u32(..4) == 0 {
        return mutate(random, bytes);
    }
    if random.u32(..4) == 0 && bytes.len() >= ALIGN {
        // Who writes it: another process, of this machine or not.
        for word in [64, 72, 80] {
            if random.bool() {
                bytes[word..word + 8].copy_from_slice(&self::word(random).to_le_bytes());
            }
        }
        let sum = xxh3_64(&bytes[64..88]);
        bytes[88..96].copy_from_slice(&sum.to_le_bytes());
    }
    let heads = heads(bytes);
    for _ in 0..random.u32(1..4) {
        let Some(at) = random.choice(&heads).copied() else {
            return;
        };
        let length = u64::from_le_bytes(bytes[at + 24..at + 32].try_into().unwrap_or_default());
        let content = at + ALIGN
            ..(at + ALIGN)
                .saturating_add(length as usize)
                .min(bytes.len());
        if random.bool() {
            // One word of the head.
            let field = at + random.usize(1..7) * 8;
            let new = match random.u32(..3) {
                0 => word(random),
                1 => random.choice(&heads).map_or(0, |head| *head as u64),
                _ => random.u64(..600),
            };
            bytes[field..field + 8].copy_from_slice(&new.to_le_bytes());
        } else if !content.is_empty() {
            let mut part = bytes[content.clone()].to_vec();
            let length = part.len();
            mutate(random, &mut part);
            // A content that is shorter or longer says so.
            part.resize(length, 0);
            bytes[content.clone()].copy_from_slice(&part);
            let sum = xxh3_64(&part);
            bytes[at + 32..at + 40].copy_from_slice(&sum.to_le_bytes());
        }
        let sum = xxh3_64(&bytes[at..at + 56]);
        bytes[at + 56..at + 64].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Reads whatever is there.
fn read(folder: &Path) {
    let Ok(mut archive) = Archive::open(folder) else {
        return;
    };
    let _ = archive.refresh();
    let _ = (archive.behind(), archive.is_past(3), archive.is_finished());
    for number in archive.steps().to_vec() {
        let Ok(step) = archive.step(number) else {
            continue;
        };
        let _ = step.check();
        for variable in step.variables() {
            let Ok(whole) = variable.whole() else {
                continue;
            };
            let _ = step.read::<f64>(&variable.name, &whole);
            let _ = step.read_into(&variable.name, &whole, &mut [0; 256]);
        }
        if let Ok(part) = Region::new(&[1, 2], &[3, 4]) {
            let _ = step.read::<f64>("u", &part);
        }
    }
}

#[test]
fn no_file_breaks_its_reader() {
    let _alone = crate::alone();
    let files = [written(true), written(false)];
    fuzz::rounds("files::no_file_breaks_its_reader", 1200, |_, random| {
        let mut bytes = files[random.usize(..2)].clone();
        damage(random, &mut bytes);
        let folder = TempDir::new().expect("a folder");
        fs::write(folder.path().join("rank-0.samite"), &bytes).expect("a file");
        let cost = crate::allocated(|| read(folder.path()));
        // A reader has pieces of 256 KiB, some of them.
        assert!(
            cost < (8 << 20) + 1000 * bytes.len(),
            "{cost} bytes for {}",
            bytes.len()
        );
        if let Ok(writer) = StepFile::resume(folder.path(), "s", 0, 1) {
            let _ = writer.last();
        }
        let _ = StepFile::begin(folder.path(), "s", random.u64(..2), 0, 1).map(drop);
    });
}
