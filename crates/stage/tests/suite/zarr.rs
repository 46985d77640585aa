//! Steps as Zarr: what we write comes back, Python reads it, and we read what Python writes.
#![cfg(feature = "zarr")]

use samite_stage::file::zarr::Zarr;
use samite_stage::file::{Content, FileError};
use samite_stage::protocol::{Attribute, Block, Layout, Step, Variable};
use samite_stage::space::{Dims, Grid};
use samite_stage::{Dtype, Region, SpaceError};
use samite_testkit::run_python;

const SHAPE: [u64; 3] = [6, 10, 7];

fn value(index: u64) -> f64 {
    index as f64 + 0.25
}

/// Every element of a box knows its place in the array.
fn values(region: &Region) -> Vec<f64> {
    let mut values = Vec::new();
    for x in region.lower()[0]..region.upper()[0] {
        for y in region.lower()[1]..region.upper()[1] {
            let row = (x * SHAPE[1] + y) * SHAPE[2];
            values.extend((region.lower()[2]..region.upper()[2]).map(|z| value(row + z)));
        }
    }
    values
}

fn layout(name: &str, dtype: Dtype, shape: &[u64], regions: &[Region]) -> Layout {
    let block = |region: &Region| Block {
        region: region.clone(),
        slot: 0,
    };
    let attributes = vec![
        ("unit".to_owned(), Attribute::Text("K".into())),
        ("origin".to_owned(), Attribute::Reals(vec![0.5, -1.0])),
    ];
    Layout {
        variables: vec![Variable {
            name: name.into(),
            dtype,
            shape: Dims::from_slice(shape),
            attributes,
            blocks: regions.iter().map(block).collect(),
        }],
    }
}

/// A step of two ranks, whose blocks are no grid of equal chunks.
fn write(zarr: &Zarr, step: Step) {
    let grid = Grid::new(&SHAPE, &[1, 3, 1]).unwrap();
    let regions: Vec<Vec<Region>> = vec![vec![grid.part(0), grid.part(2)], vec![grid.part(1)]];
    let bytes: Vec<Vec<Vec<f64>>> = regions
        .iter()
        .map(|own| own.iter().map(values).collect())
        .collect();
    let layouts: Vec<Layout> = regions
        .iter()
        .map(|own| layout("u", Dtype::F64, &SHAPE, own))
        .collect();
    let blocks: Vec<Vec<&[u8]>> = bytes
        .iter()
        .map(|own| {
            own.iter()
                .map(|block| bytemuck::cast_slice(block))
                .collect()
        })
        .collect();
    let time = [("time".to_owned(), Attribute::Integer(step as i64 * 2))];
    let part = |rank: usize| Content {
        layout: &layouts[rank],
        blocks: &blocks[rank],
        attributes: &time,
    };
    zarr.write(step, &[part(0), part(1)]).unwrap();
}

#[test]
fn any_box_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let zarr = Zarr::open(folder.path()).unwrap();
    zarr.begin("field").unwrap();
    write(&zarr, 10);
    write(&zarr, 9);
    assert_eq!(zarr.steps().unwrap(), [9, 10]);
    let u = zarr.variable(10, "u").unwrap();
    assert_eq!((u.dtype(), u.shape().as_slice()), (Dtype::F64, &SHAPE[..]));
    assert_eq!(u.attributes().len(), 2);
    assert!(
        u.attributes()
            .contains(&("origin".into(), Attribute::Reals(vec![0.5, -1.0])))
    );
    for (lower, upper) in [
        ([0, 0, 0], SHAPE),
        ([1, 2, 3], [5, 9, 4]),
        ([5, 9, 6], [6, 10, 7]),
    ] {
        let region = Region::new(&lower, &upper).unwrap();
        assert_eq!(u.read::<f64>(&region).unwrap(), values(&region));
    }
}

#[test]
fn wrong_questions_get_answers() {
    let folder = tempfile::tempdir().unwrap();
    let zarr = Zarr::open(folder.path()).unwrap();
    zarr.begin("field").unwrap();
    write(&zarr, 0);
    assert!(matches!(
        zarr.variable(0, "v"),
        Err(FileError::Foreign { .. })
    ));
    let u = zarr.variable(0, "u").unwrap();
    let outside = Region::new(&[0, 0, 0], &[6, 10, 8]).unwrap();
    let Err(FileError::Space(error)) = u.read::<f64>(&outside) else {
        panic!("{outside} is read");
    };
    assert!(matches!(*error, SpaceError::Outside { .. }));
    assert!(matches!(
        u.read::<i64>(&outside),
        Err(FileError::Type { .. })
    ));
    let whole = Region::whole(&[2]).unwrap();
    let (one, other) = (
        layout("n", Dtype::I8, &[2], std::slice::from_ref(&whole)),
        layout("n", Dtype::I16, &[2], &[whole]),
    );
    let part = |layout, blocks| Content {
        layout,
        blocks,
        attributes: &[],
    };
    let parts = [part(&one, &[&[0; 2]]), part(&other, &[&[0; 4]])];
    assert!(matches!(
        zarr.write(1, &parts),
        Err(FileError::Clash { .. })
    ));
    assert!(matches!(
        zarr.write(1, &[part(&one, &[&[0; 3]])]),
        Err(FileError::Content { .. })
    ));
}

/// A store that is used again: nothing of a step stays when it is written again, and what an older
/// run left can be removed.
#[test]
fn a_step_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let zarr = Zarr::open(folder.path()).unwrap();
    zarr.begin("field").unwrap();
    (2..5).for_each(|step| write(&zarr, step));
    let part = Region::new(&[0, 0, 0], &[3, 10, 7]).unwrap();
    let bytes = values(&part);
    let again = |name: &str| {
        let layout = layout(name, Dtype::F64, &SHAPE, std::slice::from_ref(&part));
        let content = Content {
            layout: &layout,
            blocks: &[bytemuck::cast_slice(&bytes)],
            attributes: &[],
        };
        zarr.write(3, &[content]).unwrap();
        assert_eq!(zarr.names(3).unwrap(), [name]);
    };
    again("v");
    write(&zarr, 3);
    again("u");
    let u = zarr.variable(3, "u").unwrap();
    assert_eq!(u.read::<f64>(&part).unwrap(), bytes);
    let rest = Region::new(&[3, 0, 0], &SHAPE).unwrap();
    assert_eq!(u.read::<f64>(&rest).unwrap(), [0.0; 210]);
    zarr.remove_from(3).unwrap();
    assert_eq!(zarr.steps().unwrap(), [2]);
    let whole = Region::whole(&SHAPE).unwrap();
    let u = zarr.variable(2, "u").unwrap();
    assert_eq!(u.read::<f64>(&whole).unwrap(), values(&whole));
}

/// A chunk has as many bytes as its array says, whatever it claims: here it is a frame of zstd with
/// a single block, which is not compressed.
#[test]
fn a_chunk_that_claims_more_than_its_array_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let zarr = Zarr::open(folder.path()).unwrap();
    zarr.begin("field").unwrap();
    let whole = Region::whole(&[4]).unwrap();
    let layout = layout("u", Dtype::U8, &[4], std::slice::from_ref(&whole));
    let content = Content {
        layout: &layout,
        blocks: &[&[1, 2, 3, 4]],
        attributes: &[],
    };
    zarr.write(0, &[content]).unwrap();
    let place = folder.path().join("step-0/u");
    let metadata = std::fs::read(place.join("zarr.json")).unwrap();
    let mut metadata: serde_json::Value = serde_json::from_slice(&metadata).unwrap();
    let zstd = r#"{"name": "zstd", "configuration": {"level": 0, "checksum": false}}"#;
    let codecs = metadata["codecs"].as_array_mut().unwrap();
    codecs.push(serde_json::from_str(zstd).unwrap());
    std::fs::write(place.join("zarr.json"), metadata.to_string()).unwrap();
    let read = |claims: u64| {
        let mut chunk = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
        chunk.extend(claims.to_le_bytes());
        chunk.extend([0x21, 0, 0, 1, 2, 3, 4]);
        std::fs::write(place.join("c/0"), chunk).unwrap();
        zarr.variable(0, "u").unwrap().read::<u8>(&whole)
    };
    assert_eq!(read(4).unwrap(), [1, 2, 3, 4]);
    for claims in [3, 5, 1 << 46, 1 << 62] {
        let refused = read(claims);
        assert!(
            matches!(refused, Err(FileError::Foreign { .. })),
            "{claims}: {refused:?}"
        );
    }
}

/// Python reads what we wrote, and we read what it wrote: compressed, sharded, with chunks that end
/// inside nothing of ours.
#[test]
fn python_reads_it_and_writes_it() {
    let test = "zarr::python_reads_it_and_writes_it";
    let folder = tempfile::tempdir().unwrap();
    let zarr = Zarr::open(folder.path()).unwrap();
    zarr.begin("field").unwrap();
    write(&zarr, 3);
    let script = r#"
import sys, numpy, zarr
root = zarr.open_group(sys.argv[1], mode="r+")
assert root.attrs["samite_stream"] == "field", dict(root.attrs)
step = root["step-3"]
assert dict(step.attrs) == {"time": 6}, dict(step.attrs)
u = step["u"]
assert u.dtype == numpy.float64 and u.shape == (6, 10, 7), (u.dtype, u.shape)
assert dict(u.attrs) == {"unit": "K", "origin": [0.5, -1.0]}, dict(u.attrs)
there = numpy.arange(420).reshape(6, 10, 7) + 0.25
assert (u[:] == there).all()
assert (u[1:5, 2:9, 3] == there[1:5, 2:9, 3]).all()
for name, more in [("zstd", {}), ("plain", {"compressors": None}), ("shards", {"shards": (4, 6, 4)}), ("big", {})]:
    kind = ">i4" if name == "big" else "<i4"
    made = root.create_array(name, shape=(5, 11, 4), chunks=(2, 3, 4), dtype=kind, attributes={"level": 7}, **more)
    made[:] = numpy.arange(220).reshape(5, 11, 4) * 3 - 100
"#;
    if run_python(test, script, &[folder.path().as_os_str()]).is_none() {
        return;
    }
    for name in ["zstd", "plain", "shards", "big"] {
        let array = zarr.array(name).unwrap();
        assert_eq!(
            (array.dtype(), array.shape().as_slice()),
            (Dtype::I32, &[5, 11, 4][..])
        );
        assert_eq!(
            array.attributes(),
            [("level".into(), Attribute::Integer(7))]
        );
        let region = Region::new(&[1, 4, 0], &[5, 8, 3]).unwrap();
        let mut expected = Vec::new();
        for (x, y) in (1..5).flat_map(|x| (4..8).map(move |y| (x, y))) {
            expected.extend((0..3).map(|z| ((x * 11 + y) * 4 + z) * 3 - 100));
        }
        assert_eq!(array.read::<i32>(&region).unwrap(), expected, "{name}");
    }
}

/// The real xarray opens a step as a data set: names of dimensions, values (0 is a value), facts.
#[test]
fn xarray_opens_a_step() {
    let test = "zarr::xarray_opens_a_step";
    let folder = tempfile::tempdir().unwrap();
    let zarr = Zarr::open(folder.path()).unwrap();
    zarr.begin("field").unwrap();
    write(&zarr, 3);
    let shapes: [&[u64]; 3] = [&[6, 10], &[6, 10], &[10]];
    let wholes = shapes.map(|shape| Region::whole(shape).unwrap());
    let mut all = Layout {
        variables: Vec::new(),
    };
    for (name, whole) in ["a", "b", "line"].into_iter().zip(&wholes) {
        let one = layout(
            name,
            Dtype::I32,
            &whole.shape(),
            std::slice::from_ref(whole),
        );
        all.variables.extend(one.variables);
    }
    let numbers: Vec<i32> = (0..60).collect();
    let bytes: &[u8] = bytemuck::cast_slice(&numbers);
    let content = Content {
        layout: &all,
        blocks: &[bytes, bytes, &bytes[..40]],
        attributes: &[],
    };
    zarr.write(4, &[content]).unwrap();
    let script = r#"
import sys, numpy, xarray
step = xarray.open_zarr(sys.argv[1], group="step-3")
assert step.attrs == {"time": 6}, step.attrs
assert step.u.dims == ("d0_6", "d1_10", "d2_7"), step.u.dims
assert step.u.attrs["unit"] == "K" and step.u.dtype == numpy.float64, step.u
there = numpy.arange(420).reshape(6, 10, 7) + 0.25
assert (step.u.values == there).all()
assert (step.u.isel(d1_10=slice(2, 9)).mean("d0_6").values == there[:, 2:9].mean(0)).all()
step = xarray.open_zarr(sys.argv[1], group="step-4")
assert dict(step.sizes) == {"d0_6": 6, "d1_10": 10, "d0_10": 10}, step.sizes
assert (step.a.values == numpy.arange(60).reshape(6, 10)).all(), step.a
assert (step.line.values == numpy.arange(10)).all() and step.line.dtype == numpy.int32, step.line
assert ((step.a + step.b).values == 2 * numpy.arange(60).reshape(6, 10)).all()
print("opened")
"#;
    if let Some(said) = run_python(test, script, &[folder.path().as_os_str()]) {
        assert_eq!(said, "opened\n");
    }
}
