//! One process that writes and reads what it has written: calls that do not fit, and boxes that are
//! odd.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

use ndarray::{Array1, Ix1, Ix2, array};
use samite_fabric::{Config, Fabric, Identity};
use samite_stage::file::{Content, StepFile};
use samite_stage::method::graph::{Applied, Edge, GraphError, Redistribution};
use samite_stage::protocol::{Fault, Layout, Start};
use samite_stage::{Configuration, Error, Method, Region, Result, Settings, Stage};
use std::time::Duration;

fn alone() -> Fabric {
    Fabric::alone(Identity::by_hand("alone"), Config::default()).expect("a domain of one process")
}

/// Ranks of a ragged array may have nothing.
#[test]
fn an_empty_block_is_allocated_for_every_type() -> Result<()> {
    let fabric = alone();
    let stage = Stage::join(&fabric)?;
    let mut field = stage.write("field").discard_unread().retain(1).open()?;
    let mut step = field.step()?;
    assert!(
        step.alloc::<f64>("u", [3_u64], [1_u64], [0_u64])?
            .is_empty()
    );
    assert!(step.alloc::<u8>("v", [3_u64], [3_u64], [0_u64])?.is_empty());
    step.put("u", [3_u64], [0_u64], array![1.0, 2.0, 3.0].view())?;
    step.commit()?;
    let mut reader = stage.reader("field")?;
    let step = reader.at(0)?.expect("it is retained");
    let all: Array1<f64> = step.get::<_, Ix1>("u", ..)?;
    assert_eq!(all, array![1.0, 2.0, 3.0]);
    Ok(())
}

/// A reader of a small box is shown with the bytes of that box, copied or looked at in place.
#[test]
fn what_a_reader_read_is_counted() -> Result<()> {
    let fabric = alone();
    let stage = Stage::join(&fabric)?;
    let mut field = stage.write("field").open()?;
    let mut reader = stage.reader("field")?;
    let read = || -> Result<Vec<(u64, u64)>> {
        let figures = stage.overview(Duration::from_secs(60))?.figures;
        let groups = figures.streams.iter().flat_map(|stream| &stream.groups);
        Ok(groups
            .map(|group| (group.taken, group.read_bytes))
            .collect())
    };
    let whole = ndarray::Array2::<f64>::zeros((64, 32));
    for _ in 0..2 {
        let mut step = field.step()?;
        step.put("u", [64_u64, 32], [0_u64, 0], whole.view())?;
        step.commit()?;
    }
    let step = reader.next_step()?.expect("it was committed");
    let corner: ndarray::Array2<f64> = step.get::<_, Ix2>("u", [0..2_u64, 0..3])?;
    assert_eq!(corner.len(), 6);
    let row = step.view::<f64>("u", [5..6_u64, 0..32])?;
    assert!(row.is_some(), "it lies in one block");
    assert_eq!(read()?, [(1, 0)], "it is told by the release");
    drop(step);
    assert_eq!(read()?, [(1, (6 + 32) * 8)]);
    // A step that is only looked at.
    drop(reader.next_step()?);
    assert_eq!(read()?, [(2, (6 + 32) * 8)]);
    Ok(())
}

#[test]
fn a_second_stage_in_a_domain_of_one_process_is_refused() -> Result<()> {
    let fabric = alone();
    let stage = Stage::join(&fabric)?;
    let field = stage.write("field").discard_unread().open()?;
    drop(stage);
    // The stream still uses the first one.
    let second = Stage::join(&fabric).map(|_| ());
    assert_eq!(second, Err(Error::SecondStage));
    drop(field);
    let third = Stage::join(&fabric)?;
    let mut field = third.write("field").discard_unread().open()?;
    field.step()?.commit()
}

/// What errors of wrong boxes say.
#[test]
fn boxes_and_blocks_that_do_not_fit_are_named() -> Result<()> {
    let fabric = alone();
    let stage = Stage::join(&fabric)?;
    let mut field = stage.write("field").discard_unread().retain(1).open()?;
    let mut step = field.step()?;
    let block = ndarray::Array2::<f64>::zeros((2, 3));
    let says = |error: Result<()>, sentence: &str| {
        assert_eq!(error.unwrap_err().to_string(), sentence);
    };
    says(
        step.put("u", [4_u64, 4], [0_u64, 0, 0], block.view()),
        "a block of shape [2, 3] was put at [0, 0, 0] into u, whose shape is [4, 4]: give all three the same \
         number of dimensions",
    );
    says(
        step.alloc::<f64>("u", [4_u64, 4], [0_u64, 0], [4_u64])
            .map(|_| ()),
        "a block of shape [4] was put at [0, 0] into u, whose shape is [4, 4]: give all three the same number \
         of dimensions",
    );
    says(
        step.put("u", [4_u64, 4], [3_u64, 0], block.view()),
        "the block of shape [2, 3] at [3, 0] does not lie inside u, whose shape is [4, 4]: put it inside, or give \
         the array a larger shape",
    );
    says(
        step.put("u", [4, 4], [-1, 0], block.view()),
        "the block of shape [2, 3] at [-1, 0] does not lie inside u, whose shape is [4, 4]: put it inside, or give \
         the array a larger shape",
    );
    step.put("u", [4_u64, 4], [0_u64, 0], block.view())?;
    step.commit()?;
    let mut reader = stage.reader("field")?;
    let step = reader.at(0)?.expect("it is retained");
    says(
        step.get::<f64, Ix1>("u", Region::new(&[0], &[4])?)
            .map(|_| ()),
        "the number of dimensions of u is 2 (its shape is [4, 4]), but the box [0..4] has 1: give one range for \
         each dimension",
    );
    says(
        step.get::<f64, Ix2>("u", [0..2, 0..5]).map(|_| ()),
        "[0..2, 0..5] is outside u, whose shape is [4, 4]: ask for a box inside it",
    );
    Ok(())
}

/// A step that the program fills and then forgets to commit is not missing without a word.
#[test]
fn a_stream_is_not_closed_without_a_step_that_was_filled() -> Result<()> {
    for method in [Method::Stream, Method::File] {
        let fabric = alone();
        let folder = format!("samite-alone-{}-{method:?}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let settings = Settings {
            folder: folder.clone(),
            ..Settings::of(method)
        };
        let stage = Stage::join_with(&fabric, Configuration::of(settings))?;
        let open = |name: &str| stage.write(name).discard_unread();
        let name = format!("{method:?}");
        // Dropped empty, aborted, or begun again: nothing is missing.
        let mut field = open(&name).open()?;
        drop(field.step()?);
        let mut step = field.step()?;
        step.put("u", [3_u64], [0_u64], array![1.0, 2.0, 3.0].view())?;
        step.abort();
        let mut step = field.step()?;
        step.put("u", [3_u64], [0_u64], array![1.0, 2.0, 3.0].view())?;
        drop(step);
        let mut step = field.step()?;
        step.put("u", [3_u64], [0_u64], array![1.0, 2.0, 3.0].view())?;
        step.commit()?;
        // Forgotten, but left out on purpose when it is begun again, or not put for a reason.
        for ends in 0..3 {
            let mut step = field.step()?;
            step.put("u", [3_u64], [0_u64], array![1.0, 2.0, 3.0].view())?;
            drop(step);
            let mut step = field.step()?;
            match ends {
                0 => step.abort(),
                1 => assert!(step.put("u", [3_u64], [3_u64], array![1.0].view()).is_err()),
                _ => assert!(step.alloc::<f64>("u", [3_u64], [3_u64], [1_u64]).is_err()),
            }
        }
        field.close()?;
        let name = format!("{method:?}, forgotten");
        let mut field = open(&name).open()?;
        field.step()?.commit()?;
        let mut step = field.step()?;
        step.put("u", [3_u64], [0_u64], array![1.0, 2.0, 3.0].view())?;
        drop(step);
        let sentence = format!(
            "step 1 of the stream {name} was begun and dropped, so nothing of it is in the stream, which now counts \
             as failed: call `commit` on each step before `close`, or `abort` on one that you leave out"
        );
        assert_eq!(field.close().unwrap_err().to_string(), sentence);
        let _ = std::fs::remove_dir_all(folder);
    }
    Ok(())
}

/// Who waits for a stream that nobody opened learns which ones are open.
#[test]
fn streams_that_are_open_are_listed() -> Result<()> {
    let fabric = alone();
    let stage = Stage::join(&fabric)?;
    fabric.set_deadline(Duration::from_millis(30));
    let says = |error: Result<_>, sentence: &str| {
        let error: Error = error.map(|_: samite_stage::Reader| ()).unwrap_err();
        assert_eq!(error.to_string(), sentence);
    };
    says(
        stage.reader("field"),
        "no program opened the stream field for writing in time: check its name, or wait longer; no stream is open",
    );
    let _field = stage.write("temperature").open()?;
    let _other = stage.write("pressure").open()?;
    says(
        stage.reader("temperatur"),
        "no program opened the stream temperatur for writing in time: check its name, or wait longer; did you mean \
         temperature? These are open: temperature, pressure",
    );
    says(
        stage.reader("field"),
        "no program opened the stream field for writing in time: check its name, or wait longer; these are open: \
         temperature, pressure",
    );
    Ok(())
}

/// Who waits for a stream in files learns nothing of other streams, of which it does not know.
#[test]
fn streams_in_files_are_not_listed() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let fabric = alone();
    let settings = Settings {
        folder: folder.path().to_owned(),
        ..Settings::of(Method::File)
    };
    let stage = Stage::join_with(&fabric, Configuration::of(settings))?;
    let _other = stage.write("temperature").open()?;
    fabric.set_deadline(Duration::from_millis(30));
    let error = stage.reader("temperatur").map(|_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no program opened the stream temperatur for writing in time: check its name, or wait longer"
    );
    Ok(())
}

/// Names that no program uses are told when everything is over, with those that there were.
#[test]
fn edges_and_variables_that_nobody_uses_are_told() -> Result<()> {
    let fabric = alone();
    let configuration = Configuration {
        edges: vec![
            Edge::new("solver", "temperatur", "viewer"),
            Edge::new("solver", "pressure", "viewer"),
            Edge::new("solver", "pressure", "plotter"),
        ],
        ..Configuration::default()
    };
    let stage = Stage::join_with(&fabric, configuration)?;
    let write = |name| {
        let field = stage.write(name).as_rank("solver", 0, 1);
        field.discard_unread().retain(2).open()
    };
    let (mut temperature, pressure) = (write("temperature")?, write("pressure")?);
    let reader = stage.read("pressure").as_rank("viewer", 0, 1).open()?;
    let mut step = temperature.step()?;
    for name in ["u", "v"] {
        step.put(name, [2], [0], array![1.0, 2.0].view())?;
    }
    step.commit()?;
    let watches = ["u", "w", "velocity"].map(|name| {
        let watch = stage.watch("temperature", name).start(Start::Earliest);
        watch.open().map(drop)
    });
    for watch in watches {
        watch?;
    }
    let watch = stage.watch("temperature", "w").open()?;
    let mut step = temperature.step()?;
    step.put("w", [2], [0], array![1.0, 2.0].view())?;
    step.commit()?;
    drop((watch, reader));
    temperature.close()?;
    pressure.close()?;
    assert_eq!(
        stage.unused(fabric.deadline())?,
        [
            "an edge leads from the stream temperatur of solver, which nobody opened for writing: did you mean \
             temperature? These were written: pressure, temperature",
            "an edge leads to the stream pressure of plotter, which nobody opened for reading as plotter: check the \
             names of the edge",
            "a program subscribed to velocity of the stream temperature, and no step from then on had a variable of \
             that name: step 0 has these: u, v",
        ]
    );
    Ok(())
}

/// A budget that is used up is said to be, with its numbers, and not that the block store has none.
#[test]
fn a_budget_that_is_used_up_is_said_to_be() -> Result<()> {
    const BUDGET: u64 = 64 << 20;
    let config = Config {
        budget: Some(BUDGET),
        ..Config::default()
    };
    let fabric =
        Fabric::alone(Identity::by_hand("alone"), config).expect("a domain of one process");
    let stage = Stage::join(&fabric)?;
    let mut field = stage.write("field").discard_unread().open()?;
    let taken = fabric.allocate(40 << 20)?;
    let mut step = field.step()?;
    let block = ndarray::Array1::<u8>::zeros(30 << 20);
    let put = step.put("u", [30_u64 << 20], [0_u64], block.view());
    let error = put.unwrap_err();
    let Error::Fault(Fault::BudgetUsedUp { used, budget, .. }) = &error else {
        panic!("{error:?}");
    };
    assert!(*budget == BUDGET && *used >= 40 << 20, "{error}");
    let text = error.to_string();
    assert!(text.starts_with("memory.budget is used up: "), "{text}");
    assert!(
        text.contains(&format!("{used} of the {BUDGET} bytes")),
        "{text}"
    );
    assert!(text.contains("of alone.0"), "{text}");
    drop((step, taken));
    let mut step = field.step()?;
    step.put("u", [30_u64 << 20], [0_u64], block.view())?;
    step.commit()
}

#[test]
fn a_subscription_without_an_edge_is_refused_at_once() -> Result<()> {
    let fabric = alone();
    let stage = Stage::join_with(&fabric, Configuration::of(Settings::of(Method::Graph)))?;
    let error = stage.watch("field", "u").open().map(|_| ()).unwrap_err();
    let expected = Error::Graph(GraphError::NoEdgeTo {
        program: "alone".into(),
        name: "field".into(),
        there: Vec::new(),
    });
    assert_eq!(error.to_string(), expected.to_string());
    Ok(())
}

/// Of an array that is larger than any memory, of which next to nothing is written.
#[test]
fn a_huge_box_with_a_hole_is_said_to_have_one() -> Result<()> {
    let fabric = alone();
    let stage = Stage::join(&fabric)?;
    let mut field = stage.write("field").discard_unread().retain(1).open()?;
    let mut step = field.step()?;
    let huge = 1_u64 << 50;
    step.put("u", [huge], [7_u64], array![1.0, 2.0].view())?;
    step.commit()?;
    let mut reader = stage.reader("field")?;
    let step = reader.at(0)?.expect("it is retained");
    for error in [
        step.get::<f64, Ix1>("u", ..).map(|_| ()),
        step.mine::<f64, Ix1>("u").map(|_| ()),
    ] {
        assert!(matches!(error, Err(Error::Hole { .. })), "{error:?}");
    }
    // Only its box is asked for.
    assert_eq!(step.mine_of("u")?, [Region::whole(&[huge])?]);
    assert_eq!(
        step.get::<f64, Ix1>("u", &Region::at(&[7], &[2])?)?,
        array![1.0, 2.0]
    );
    Ok(())
}

/// A reader's own rows are as many as the writer declares, which is next to none of them.
#[test]
fn rows_of_a_huge_array_are_said_to_have_a_hole() -> Result<()> {
    for operators in [&[][..], &["stride 2"]] {
        let fabric = alone();
        let edge = Edge {
            redistribute: Redistribution::Round,
            operators: operators.iter().map(|text| Applied::from(*text)).collect(),
            ..Edge::new("solver", "field", "analysis")
        };
        let configuration = Configuration {
            edges: vec![edge],
            ..Configuration::of(Settings::of(Method::Graph))
        };
        let stage = Stage::join_with(&fabric, configuration)?;
        let field = stage.write("field").as_rank("solver", 0, 1);
        let mut field = field.discard_unread().retain(2).open()?;
        for rows in [1_u64 << 50, 1 << 33] {
            let mut step = field.step()?;
            step.put("u", [rows], [0_u64], array![1.0, 2.0, 3.0].view())?;
            step.commit()?;
        }
        let reader = stage.read("field").as_rank("analysis", 0, 2);
        let mut reader = reader.start(Start::Earliest).open()?;
        for number in 0..2 {
            let step = reader.at(number)?.expect("it is retained");
            for error in [
                step.mine::<f64, Ix1>("u").map(|_| ()),
                step.mine_of("u").map(|_| ()),
            ] {
                assert!(matches!(error, Err(Error::Hole { .. })), "{error:?}");
            }
        }
        // Through an operator, holes are found when its input is read: first there has to be memory
        // for the result.
        let all = reader
            .at(0)?
            .expect("it is retained")
            .get::<f64, Ix1>("u", ..);
        match operators.is_empty() {
            true => assert!(matches!(all, Err(Error::Hole { .. })), "{all:?}"),
            false => assert!(matches!(all, Err(Error::NoMemory { .. })), "{all:?}"),
        }
    }
    Ok(())
}

/// A reader's own rows take memory, however small they are.
#[test]
fn more_rows_of_ones_own_than_memory_should_hold_are_refused() -> Result<()> {
    const MOST: usize = 1 << 20;
    let fabric = alone();
    let edge = Edge {
        redistribute: Redistribution::Round,
        ..Edge::new("solver", "field", "analysis")
    };
    let configuration = Configuration {
        edges: vec![edge],
        ..Configuration::of(Settings::of(Method::Graph))
    };
    let stage = Stage::join_with(&fabric, configuration)?;
    let field = stage.write("field").as_rank("solver", 0, 1);
    let mut field = field.discard_unread().retain(1).open()?;
    let mut step = field.step()?;
    let rows = Array1::<u8>::ones(2 * MOST + 1);
    step.put("u", [rows.len() as u64], [0_u64], rows.view())?;
    step.commit()?;
    for (rank, is_refused) in [(0, true), (1, false)] {
        let reader = stage.read("field").as_rank("analysis", rank, 2);
        let mut reader = reader.start(Start::Earliest).open()?;
        let step = reader.at(0)?.expect("it is retained");
        match step.mine_of("u") {
            Ok(own) => assert!(!is_refused && own.len() == MOST, "{} rows", own.len()),
            Err(Error::Graph(GraphError::TooManyBoxes { .. })) => assert!(is_refused),
            Err(error) => panic!("{error}"),
        }
    }
    Ok(())
}

/// A wrong call is named, and not something else that it might have been.
#[test]
fn wrong_calls_are_told_what_is_wrong_with_them() -> Result<()> {
    let fabric = alone();
    let stage = Stage::join(&fabric)?;
    let mut field = stage.write("field").discard_unread().retain(1).open()?;
    let mut step = field.step()?;
    for (name, from) in [("u", 0_u64), ("v", 0), ("u", 2)] {
        step.alloc::<f64>(name, [4_u64], [from], [2_u64])?;
    }
    step.put("w", [2_u64], [0_u64], array![1.0, 2.0].view())?;
    step.commit_and_keep()?;
    let read = stage.reader("field")?.at(0)?.expect("it is retained");
    let flat = read.get::<f64, Ix2>("w", ..).map(|_| ()).unwrap_err();
    assert_eq!(
        flat.to_string(),
        "the number of dimensions of w is 1, but an array with 2 was requested: request one with 1, or with any number (`IxDyn`)"
    );
    let step = field.step()?;
    let last = step.last().expect("it was kept");
    let put = last.view::<f64>("w", ..).map(|_| ()).unwrap_err();
    assert_eq!(
        put.to_string(),
        "this rank allocated nothing of w in step 0, only [\"u\", \"v\"]: only what `alloc` returned can be read in place"
    );
    Ok(())
}

/// A stream that appears after the tokens is waited for as long as the reader says.
#[test]
fn a_stream_after_the_tokens_is_waited_for_up_to_the_timeout() -> Result<()> {
    let fabric = alone();
    let edge = Edge {
        tokens: 1,
        ..Edge::new("solver", "field", "analysis")
    };
    let configuration = Configuration {
        edges: vec![edge],
        ..Configuration::of(Settings::of(Method::Graph))
    };
    let stage = Stage::join_with(&fabric, configuration)?;
    let reader = stage.read("field").as_rank("analysis", 0, 1);
    let mut reader = reader.timeout(Duration::from_millis(1)).open()?;
    assert!(reader.next_step()?.is_some_and(|step| step.is_token()));
    let deadline = Duration::from_secs(20);
    fabric.set_deadline(deadline);
    let begin = fabric.now();
    let none = reader.next_step().map(|_| ());
    assert!(
        matches!(none, Err(Error::Fault(Fault::NoStream { .. }))),
        "{none:?}"
    );
    assert!(
        fabric.now() - begin < deadline,
        "the deadline is not the timeout"
    );
    Ok(())
}

/// Deadlines are for processes that do not answer: memory that takes longer to be made than any
/// deadline comes, part by part.
#[test]
fn a_block_whose_memory_takes_longer_than_the_deadline_is_waited_for() -> Result<()> {
    // Five parts, each of which takes some milliseconds.
    const LONG: u64 = 320 << 20;
    let fabric = alone();
    let stage = Stage::join(&fabric)?;
    let field = stage.write("field").discard_unread().retain(1);
    // If it were not to end, it would end so.
    let mut field = field.timeout(Duration::from_secs(60)).open()?;
    let mut step = field.step()?;
    let usual = fabric.deadline();
    fabric.set_deadline(Duration::from_millis(1));
    let block = step.alloc::<u8>("u", [LONG], [0_u64], [LONG]);
    fabric.set_deadline(usual);
    let mut block = block?;
    for place in [0, LONG / 2, LONG - 1] {
        block[[place as usize]] = (place % 251) as u8 + 1;
    }
    step.commit()?;
    let mut reader = stage.reader("field")?;
    let step = reader.at(0)?.expect("it is retained");
    for place in [0, LONG / 2, LONG - 1] {
        let one: Array1<u8> = step.get::<_, Ix1>("u", &Region::at(&[place], &[1])?)?;
        assert_eq!(one[0], (place % 251) as u8 + 1);
    }
    Ok(())
}

/// Files of others may have any steps: one between them that no rank has never comes.
#[test]
fn a_step_that_files_left_out_is_not_waited_for() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let fabric = alone();
    let settings = Settings {
        folder: folder.path().to_owned(),
        ..Settings::of(Method::File)
    };
    let stage = Stage::join_with(&fabric, Configuration::of(settings))?;
    let mut file = StepFile::create(&folder.path().join("field"), "field", 0, 1).expect("a file");
    let layout = Layout::default();
    let content = Content {
        layout: &layout,
        blocks: &[],
        attributes: &[],
    };
    file.append(0, content).expect("a step");
    // If it were waited for, it would end so.
    let reader = stage.read("field").timeout(Duration::from_secs(2));
    let mut reader = reader.open()?;
    // The reader has not seen this one.
    file.append(3, content).expect("a step");
    let missing = reader.at(2).map(|_| ());
    assert!(
        matches!(missing, Err(Error::Fault(Fault::Gone { step: 2, .. }))),
        "{missing:?}"
    );
    Ok(())
}
