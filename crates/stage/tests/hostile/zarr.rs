//! Zarr stores of others: metadata that say anything, chunks that hold anything.

use samite_stage::file::Content;
use samite_stage::file::zarr::{Zarr, ZarrArray};
use samite_stage::protocol::{Attribute, Block, Layout, Variable};
use samite_stage::space::Dims;
use samite_stage::{Dtype, Element, Region, for_dtype};
use samite_testkit::fuzz::{self, Rng, mutate, word};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Two steps of two arrays, in chunks.
fn written() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let zarr = Zarr::open(folder.path()).expect("a store");
    zarr.begin("s").expect("a group");
    let values: Vec<f64> = (0..32).map(f64::from).collect();
    let variable = |name: &str, dtype: Dtype, wide: u64| {
        let block = |from| Block {
            region: Region::at(&[from, 0], &[2, wide]).expect("a box"),
            slot: 0,
        };
        Variable {
            name: name.into(),
            dtype,
            shape: Dims::from_slice(&[4, wide]),
            attributes: vec![("unit".into(), Attribute::Text("K".into()))],
            blocks: vec![block(0), block(2)],
        }
    };
    let layout = Layout {
        variables: vec![variable("u", Dtype::F64, 8), variable("n", Dtype::I16, 5)],
    };
    let bytes: &[u8] = bytemuck::cast_slice(&values);
    let content = Content {
        layout: &layout,
        blocks: &[&bytes[..128], &bytes[128..], &bytes[..20], &bytes[20..40]],
        attributes: &[("time".into(), Attribute::Real(0.5))],
    };
    for step in [0, 3] {
        zarr.write(step, &[content]).expect("a step");
    }
    folder
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => files_below(&path, found),
            false => found.push(path),
        }
    }
}

/// A number, a text or a list somewhere in the metadata becomes another one.
fn change(random: &mut Rng, value: &mut Value) {
    let inner = match value {
        Value::Array(values) if !values.is_empty() && random.u32(..4) > 0 => {
            let at = random.usize(..values.len());
            Some(&mut values[at])
        }
        Value::Object(fields) if !fields.is_empty() => {
            let at = random.usize(..fields.len());
            fields.values_mut().nth(at)
        }
        _ => None,
    };
    match inner {
        Some(inner) => change(random, inner),
        None => {
            *value = match random.u32(..7) {
                0 => Value::from(word(random)),
                1 => Value::from(random.u64(..20)),
                2 => Value::from(Vec::<u64>::new()),
                3 => (0..random.u64(..6)).map(|_| word(random)).collect(),
                4 => Value::Null,
                5 => Value::from("float32"),
                _ => Value::from(-1.5),
            }
        }
    }
}

fn damage(random: &mut Rng, folder: &Path) {
    let mut files = Vec::new();
    files_below(folder, &mut files);
    files.sort();
    for _ in 0..random.u32(1..4) {
        let path = random.choice(&files).expect("there are files");
        let mut bytes = fs::read(path).unwrap_or_default();
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(mut value) if random.u32(..5) > 0 => {
                change(random, &mut value);
                bytes = value.to_string().into_bytes();
            }
            _ => mutate(random, &mut bytes),
        }
        fs::write(path, bytes).expect("a file");
    }
}

/// Reads whatever is there.
fn read(folder: &Path) {
    let Ok(zarr) = Zarr::open(folder) else { return };
    for step in zarr.steps().unwrap_or_default() {
        let _ = zarr.attributes(step);
        for name in zarr.names(step).unwrap_or_default() {
            let Ok(array) = zarr.variable(step, &name) else {
                continue;
            };
            let _ = array.attributes();
            for_dtype!(array.dtype(), T => boxes::<T>(&array));
        }
    }
    for step in [0, 3] {
        for name in ["u", "n"] {
            let _ = zarr.variable(step, name).map(|array| array.shape());
        }
    }
}

fn boxes<T: Element>(array: &ZarrArray) {
    let shape = array.shape();
    if let Ok(whole) = Region::whole(&shape) {
        // What memory has room for, and the metadata promise, is read; nobody has time for it here.
        let bytes = whole.bytes(size_of::<T>() as u64);
        if bytes.is_ok_and(|bytes| bytes <= 64 << 10 || bytes > 1 << 46) {
            let _ = array.read::<T>(&whole);
        }
    }
    let part: Vec<u64> = shape.iter().map(|length| length.min(&2) / 2).collect();
    let (from, length) = (part.clone(), vec![1; shape.len()]);
    if let Ok(point) = Region::at(&from, &length) {
        let _ = array.read::<T>(&point);
    }
}

#[test]
fn no_store_breaks_its_reader() {
    let _alone = crate::alone();
    let whole = written();
    let mut files = Vec::new();
    files_below(whole.path(), &mut files);
    fuzz::rounds("zarr::no_store_breaks_its_reader", 150, |_, random| {
        let folder = TempDir::new().expect("a folder");
        for file in &files {
            let place = folder
                .path()
                .join(file.strip_prefix(&whole).expect("below"));
            fs::create_dir_all(place.parent().expect("a folder")).expect("a folder");
            fs::copy(file, place).expect("a copy");
        }
        damage(random, folder.path());
        let cost = crate::allocated(|| read(folder.path()));
        assert!(cost < 256 << 20, "{cost} bytes");
    });
}
