//! Which unit `samite run` names when several fail: the one whose end was the cause.

use ndarray::Array2;
use samite::pgas::{self, Pgas, Unit};
use samite::stage::protocol::{EndOfStream, Failure, Fault, Peer};
use samite::stage::{self, Element, Stage, StepWriter};
use samite::{Fabric, Match, PeerId};
use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

/// What a unit of the job does; a test binary without it is the test.
const MODE: &str = "SAMITE_TEST_MODE";
/// The ranks in the order in which they commit.
const ORDER: &str = "SAMITE_TEST_ORDER";
/// Ranks tell each other with it that it is their turn.
const TURN: u64 = 1;
/// The rank that is wrong.
const WRONG: u32 = 1;
const RANKS: u32 = 3;

/// The processes that have to end before this one prints its error and ends.
static OTHERS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Runs three units of this test binary, as the program `unit`. Returns what `samite run` prints
/// about their failure.
fn failure(test: &str, variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("flow.toml");
    let text = format!(
        "[[program]]\nname = 'unit'\nunits = {RANKS}\ncommand = '{}'\nargs = ['--exact', '{test}', '--nocapture']\n",
        std::env::current_exe().expect("a path").display()
    );
    std::fs::write(&file, text).expect("a scratch folder can be written");
    // The units end as soon as all have failed, so the job does not last as long as this grace.
    let output = Command::new(env!("CARGO_BIN_EXE_samite"))
        .args(["run", "--config", "launch.grace=1000 s"])
        .arg(file)
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .envs(variables.iter().copied())
        .output()
        .expect("samite can be started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    let error = said.lines().position(|line| line.starts_with("samite: "));
    let lines: Vec<&str> = said.lines().skip(error.unwrap_or(0)).collect();
    lines.join("\n")
}

type Done = Result<(), Box<dyn Error>>;

/// Runs the body of a unit as `main` would, if this process is one.
fn be_unit(body: fn(&Fabric, &str) -> Done) {
    let Ok(mode) = std::env::var(MODE) else {
        return;
    };
    let result = samite::init()
        .map_err(Into::into)
        .and_then(|fabric| body(&fabric, &mode));
    if let Err(error) = result {
        let others = std::mem::take(&mut *OTHERS.lock().expect("no thread panicked"));
        while others.iter().any(|process| Path::new(process).exists()) {
            std::thread::yield_now();
        }
        eprintln!("Error: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

/// Writes one step, in which the blocks of the ranks do not fit together.
fn write(fabric: &Fabric, mode: &str) -> Done {
    let rank = fabric.identity().rank;
    let units = fabric.program("unit")?;
    let order: Vec<u32> = std::env::var(ORDER)?
        .chars()
        .filter_map(|digit| digit.to_digit(10))
        .collect();
    let at = order.iter().position(|other| *other == rank);
    let at = at.ok_or("every rank is in the order")?;
    let stage = Stage::join(fabric)?;
    let mut field = stage.writer("field")?;
    let step = field.step()?;
    if at > 0 {
        let before = units[order[at - 1] as usize];
        fabric.recv_vec(Match::from(before, TURN))?;
    }
    let is_wrong = rank == WRONG;
    let committed = match mode {
        "shape" => put::<f64>(step, if is_wrong { 7 } else { 6 }, rank * 2),
        "type" if is_wrong => put::<f32>(step, 6, rank * 2),
        "overlap" if is_wrong => put::<f64>(step, 6, rank * 2 - 1),
        _ => put::<f64>(step, 6, rank * 2),
    };
    if let Some(after) = order.get(at + 1) {
        fabric.send(units[*after as usize], TURN, &[])?;
    }
    wait_for_the_last(fabric, &units, order[2])?;
    committed
}

fn put<E: Element + Default + Clone>(mut step: StepWriter<'_>, rows: u64, first: u32) -> Done {
    let block = Array2::from_elem((2, 4), E::default());
    step.put("u", [rows, 4], [u64::from(first), 0], block.view())?;
    Ok(step.commit()?)
}

/// Ranks that have their answer stay until the last one has its own.
fn wait_for_the_last(fabric: &Fabric, units: &[PeerId], last: u32) -> samite::Result<()> {
    const ANSWERED: u64 = 2;
    if fabric.identity().rank != last {
        fabric.recv_vec(Match::from(units[last as usize], ANSWERED))?;
        return Ok(());
    }
    let others = units.iter().filter(|unit| **unit != fabric.me());
    others
        .copied()
        .try_for_each(|unit| fabric.send(unit, ANSWERED, &[]))
}

#[test]
fn writers_that_do_not_fit_together_are_both_named() {
    be_unit(write);
    let test = "cause::writers_that_do_not_fit_together_are_both_named";
    let said = |mode, order| failure(test, &[(MODE, mode), (ORDER, order)]);
    for mode in ["shape", "type"] {
        // The coordinator compares each rank with the first one, so both of the others fail.
        let error = said(mode, "102");
        let sentence = "unit.1 is the likely cause: unit.0 and unit.2 name it";
        let other = "unit.1 is the likely cause: unit.2 and unit.0 name it";
        assert!(error.contains(sentence) || error.contains(other), "{error}");
        for order in ["012", "021"] {
            let error = said(mode, order);
            let sentence = "samite: unit.1 ended with exit code 1, at odds with unit.0";
            assert!(error.starts_with(sentence), "{order}: {error}");
        }
    }
    // Whether blocks overlap is only known at the last commit.
    let error = said("overlap", "102");
    let sentence = "samite: unit.0 or unit.1 is the likely cause: unit.2 names them";
    assert!(error.starts_with(sentence), "{error}");
    let error = said("overlap", "021");
    let sentence = "samite: unit.1 ended with exit code 1, at odds with unit.0";
    assert!(error.starts_with(sentence), "{error}");
}

/// Fails at one rank, whose error is printed after the others have lost it.
fn lose(fabric: &Fabric, mode: &str) -> Done {
    let pgas = Pgas::new(fabric)?;
    let units = fabric.program("unit")?;
    let wrong = units[WRONG as usize];
    if fabric.identity().rank != WRONG {
        let process = format!("/proc/{}", std::process::id());
        fabric.send(wrong, TURN, process.as_bytes())?;
        pgas.world().barrier()?;
        return Ok(());
    }
    let mut others = OTHERS.lock().expect("no thread panicked");
    for unit in units.into_iter().filter(|unit| *unit != wrong) {
        let (_, process) = fabric.recv_vec(Match::from(unit, TURN))?;
        others.push(String::from_utf8(process)?);
    }
    assert!(mode != "panic", "no such atom");
    Err("the disk is full".into())
}

#[test]
fn a_unit_that_others_lose_is_the_cause() {
    be_unit(lose);
    let test = "cause::a_unit_that_others_lose_is_the_cause";
    let error = failure(test, &[(MODE, "error")]);
    let sentence = "samite: unit.1 ended with exit code 1; the last thing it said:";
    assert!(error.starts_with(sentence), "{error}");
    assert!(error.contains("Error: the disk is full"), "{error}");
    let error = failure(test, &[(MODE, "panic"), ("RUST_BACKTRACE", "1")]);
    assert!(
        error.starts_with("samite: unit.1 ended with exit code 101"),
        "{error}"
    );
    assert!(error.contains("no such atom"), "{error}");
}

/// Every error about the end of another unit is recognised.
#[test]
fn errors_about_others_are_known_to_the_launcher() {
    let lost = || samite::Error::PeerLost {
        peer: PeerId(3).into(),
        incarnation: 1,
    };
    let unit = || Unit(3).into();
    let losses: Vec<Box<dyn Error>> = vec![
        Box::new(lost()),
        Box::new(samite::Error::AgentLost("lab".into())),
        Box::new(samite::Error::Absent {
            unit: "heat.1".into(),
            job: "heat".into(),
            how: "it ended with exit code 1".into(),
        }),
        Box::new(samite::Error::timeout(
            "a barrier",
            samite::Whom::Any,
            std::time::Duration::from_secs(1),
        )),
        Box::new(pgas::Error::Fabric(lost())),
        Box::new(pgas::Error::UnitLost {
            unit: unit(),
            what: "a barrier",
        }),
        Box::new(pgas::Error::HolderLost { unit: unit() }),
        Box::new(pgas::Error::NoMemory(unit())),
        Box::new(pgas::Error::Refused(unit())),
        Box::new(pgas::Error::NoPhase(unit())),
        Box::new(stage::Error::Fabric(lost())),
        Box::new(Fault::WriterFailed {
            stream: "field".into(),
            program: Some("heat".into()),
            rank: 1,
            how: Failure::Died,
        }),
        Box::new(samite::Error::PeerCorrupt {
            peer: PeerId(3).into(),
            what: samite_mem::Corrupt {
                what: "a length",
                value: 7,
            },
        }),
        Box::new(samite::Error::HandlerPanicked {
            peer: PeerId(3).into(),
            handler: 7,
        }),
        Box::new(Fault::RankClosed {
            stream: "field".into(),
            program: "heat".into(),
            rank: 1,
            step: 3,
        }),
        Box::new(Fault::BlockStoreSilent {
            block_store: Peer(3).into(),
            bytes: 64,
        }),
        Box::new(Fault::NoBlockStore {
            block_store: Peer(3).into(),
        }),
        Box::new(Fault::BlockStoreLost {
            block_store: Peer(3).into(),
            step: 3,
        }),
        Box::new(Fault::Damaged {
            step: 3,
            block_stores: Vec::new(),
        }),
    ];
    // A program may print `{error}` or `{error:?}`.
    for error in losses {
        assert!(samite_launch::follows_a_loss(&error.to_string()), "{error}");
        let debug = format!("{error:?}");
        let code = debug.rsplit('[').next().expect("it ends with its code");
        assert!(samite_launch::follows_a_loss(code), "{debug}");
    }
    // Messages come, but with another tag than the one that the receiver waits for.
    let other_tag: Box<dyn Error> = Box::new(samite::Error::Timeout {
        what: "a receive",
        whom: samite::Whom::Any.into(),
        after: std::time::Duration::from_secs(1),
        expected: Some(Box::new(samite::Expected::Message {
            tag: 7,
            mask: u64::MAX,
            others: vec![8],
        })),
    });
    for said in [format!("{other_tag}"), format!("{other_tag:?}")] {
        assert!(!samite_launch::follows_a_loss(&said), "{said}");
    }
    let closed = EndOfStream::WriterFailed {
        rank: 1,
        how: Failure::GaveUp,
    };
    assert!(closed.fault("field", None).is_some());
    for own in [
        samite::Error::Cancelled.to_string(),
        pgas::Error::AlreadyHeld.to_string(),
        Fault::NotOpen.to_string(),
    ] {
        assert!(!samite_launch::follows_a_loss(&own), "{own}");
    }
}
