//! What the command line says of a stream counts at both ends of its edge, under either of its
//! names.

use samite::ndarray::{Array1, array};
use samite::stage::Stage;
use samite::stage::protocol::Start;
use std::path::Path;
use std::process::Command;

/// This test binary as the programs of the workflow below.
const NAME: &str = "edges::the_command_line_counts_at_both_ends_of_an_edge";

/// Opens the stream of the edge, at the end that the program is, and says how it is read.
fn unit() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = samite::init()?;
    let stage = Stage::join(&fabric)?;
    if fabric.identity().program == "a" {
        let mut writer = stage.writer("ab")?;
        writer.step()?.commit()?;
        return Ok(writer.close()?);
    }
    let mut reader = stage.reader("input")?;
    println!("\n@ the reader has {:?}", reader.policy());
    let overview = stage.overview(fabric.deadline())?;
    for group in overview.figures.streams.iter().flat_map(|it| &it.groups) {
        let limits = group.limits;
        println!(
            "@ its queue has {:?}, {} steps, {} bytes",
            group.policy, limits.steps, limits.bytes
        );
    }
    while reader.next_step()?.is_some() {}
    Ok(())
}

/// The workflow under these settings, as its reader says it.
fn said(file: &Path, settings: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_samite"));
    command.args(["run", "--tag-output=no"]);
    for setting in settings {
        command.args(["--config", setting]);
    }
    let output = command
        .arg(file)
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .output()
        .expect("samite can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{settings:?}: {errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| line.strip_prefix("@ "));
    lines.collect::<Vec<_>>().join("; ")
}

#[test]
fn the_command_line_counts_at_both_ends_of_an_edge() {
    if std::env::var("SAMITE_RANK").is_ok() {
        return unit().expect("a stream");
    }
    let this = std::env::current_exe().expect("a test binary has a path");
    let program = |name| {
        let this = this.display();
        format!(
            "[[program]]\nname = '{name}'\ncommand = '{this}'\nargs = ['--exact', '{NAME}', '--nocapture']\n"
        )
    };
    let edge = "[[edge]]\nfrom = 'a'\nstream = 'ab'\nto = 'b'\nas = 'input'\nrate = 'drop_oldest'\nlimit_steps = '3 steps'\nlimit_bytes = '1 MiB'\n";
    let text = program("a") + &program("b") + edge + "[config]\nstage.method = 'graph'\n";
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("graph.toml");
    std::fs::write(&file, text).expect("it can be written");
    let wanted = |policy: &str, steps: u64, bytes: u64| {
        format!("the reader has {policy}; its queue has {policy}, {steps} steps, {bytes} bytes")
    };
    assert_eq!(said(&file, &[]), wanted("DropOldest", 3, 1 << 20));
    for name in ["ab", "input"] {
        let of = |setting: &str| format!("stage.{name}.{setting}");
        let policy = of("policy=spill");
        assert_eq!(
            said(&file, &[&policy]),
            wanted("Spill", 3, 1 << 20),
            "{name}"
        );
        let steps = of("limit_steps=5 steps");
        assert_eq!(
            said(&file, &[&steps]),
            wanted("DropOldest", 5, 1 << 20),
            "{name}"
        );
        let bytes = of("limit_bytes=64 KiB");
        assert_eq!(
            said(&file, &[&bytes]),
            wanted("DropOldest", 3, 64 << 10),
            "{name}"
        );
    }
}

const MISSPELT: &str = "edges::names_that_nobody_uses_are_told_when_the_job_is_over";

/// Writes a stream that no edge names, or reads it and subscribes to a variable that it has not.
fn misspelt_unit() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = samite::init()?;
    let stage = Stage::join(&fabric)?;
    if fabric.identity().program == "a" {
        let mut writer = stage.writer("temperature")?;
        let mut step = writer.step()?;
        step.put("u", [2], [0], array![1.0, 2.0].view())?;
        step.commit()?;
        return Ok(writer.close()?);
    }
    let mut reader = stage.reader("temperature")?;
    let step = reader.next_step()?.ok_or("there is one step")?;
    let _: Array1<f64> = step.get("u", ..)?;
    let watch = stage.watch("temperature", "uu");
    drop(watch.start(Start::Earliest).open()?);
    drop(step);
    while reader.next_step()?.is_some() {}
    Ok(())
}

#[test]
fn names_that_nobody_uses_are_told_when_the_job_is_over() {
    if std::env::var("SAMITE_RANK").is_ok() {
        return misspelt_unit().expect("a stream");
    }
    let this = std::env::current_exe().expect("a test binary has a path");
    let program = |name| {
        let this = this.display();
        format!(
            "[[program]]\nname = '{name}'\ncommand = '{this}'\nargs = ['--exact', '{MISSPELT}', '--nocapture']\n"
        )
    };
    let edge = "[[edge]]\nfrom = 'a'\nstream = 'temperatur'\nto = 'b'\n";
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("misspelt.toml");
    std::fs::write(&file, program("a") + &program("b") + edge).expect("it can be written");
    let output = Command::new(env!("CARGO_BIN_EXE_samite"))
        .arg("run")
        .arg(&file)
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .output()
        .expect("samite can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let said: Vec<&str> = errors
        .lines()
        .filter_map(|line| line.strip_prefix("samite: "))
        .collect();
    let expected = [
        "an edge leads from the stream temperatur of a, which nobody opened for writing: did you mean temperature? These were written: temperature",
        "a program subscribed to uu of the stream temperature, and no step from then on had a variable of that name: did you mean u? Step 0 has these: u",
    ];
    for sentence in expected {
        assert!(said.contains(&sentence), "{sentence}? {errors}");
    }
}

const UNOPENED: &str =
    "edges::settings_of_a_stream_that_nobody_opens_are_told_when_the_job_is_over";

/// Without edges nobody knows the streams before they are opened.
#[test]
fn settings_of_a_stream_that_nobody_opens_are_told_when_the_job_is_over() {
    if std::env::var("SAMITE_RANK").is_ok() {
        return misspelt_unit().expect("a stream");
    }
    let this = std::env::current_exe().expect("a test binary has a path");
    let program = |name| {
        let this = this.display();
        format!(
            "[[program]]\nname = '{name}'\ncommand = '{this}'\nargs = ['--exact', '{UNOPENED}', '--nocapture']\n"
        )
    };
    let config = "[config.stage.temperature]\nlimit_steps = '3 steps'\n\
                  [config.stage.temperatur]\nlimit_steps = '3 steps'\n\
                  [config.stage.file]\nmethod = 'file'\n";
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("unopened.toml");
    std::fs::write(&file, program("a") + &program("b") + config).expect("it can be written");
    // The user's own settings are for other workflows too.
    let of_user = folder.path().join("samite");
    std::fs::create_dir(&of_user).expect("a scratch folder can be written");
    let settings = "[stage.pressure]\nlimit_steps = '3 steps'\n";
    std::fs::write(of_user.join("config.toml"), settings).expect("it can be written");
    let run = |option: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_samite"))
            .args([
                "run",
                option,
                "--config",
                "stage.velocity.limit_steps=3 steps",
            ])
            .arg(&file)
            .env("XDG_CONFIG_HOME", folder.path())
            .env_remove("SAMITE_LOG")
            .output()
            .expect("samite can be started");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        let said = errors.lines().filter(|line| line.contains("nobody opened"));
        said.map(str::to_owned).collect::<Vec<_>>()
    };
    let place = file.display();
    let expected = [
        format!(
            "samite: {place}:12: there are settings for the stream temperatur, which nobody opened: did you mean temperature? These were opened: temperature"
        ),
        "samite: --config: there are settings for the stream velocity, which nobody opened: these were opened: temperature".to_owned(),
    ];
    assert_eq!(run("--tag-output=no"), expected);
    assert!(run("--quiet").is_empty());
}
