//! Processes that a person starts beside a running agent: as a job of `samite run`, or one by one.

use samite::ndarray::Array2;
use samite::pgas::{Pgas, Sum};
use samite::stage::Stage;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Marks a process that is a unit; a test binary without it is the test.
const UNIT: &str = "SAMITE_TEST_UNIT";

/// An agent that ends with the test.
struct Agent {
    process: Child,
    domain: String,
}

impl Agent {
    fn start(test: &str) -> Agent {
        Agent::start_with(test, &[])
    }

    fn start_with(test: &str, more: &[&str]) -> Agent {
        let domain = format!("{test}-{}", std::process::id());
        let mut process = command(env!("CARGO_BIN_EXE_samite"))
            .args(["agent", "--domain", &domain])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .expect("samite can be started");
        let mut ready = String::new();
        let stdout = process.stdout.take().expect("it was piped");
        BufReader::new(stdout)
            .read_line(&mut ready)
            .expect("it prints text");
        assert_eq!(ready, "ready\n");
        Agent { process, domain }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        // A test that waits for it has failed.
        .env("SAMITE_FABRIC_DEADLINE", "1h");
    command
}

/// Returns this test binary, as a unit of the test.
fn own(test: &str) -> Command {
    let path = std::env::current_exe().expect("a path");
    let mut command = command(path.to_str().expect("its path is text"));
    command
        .env(UNIT, "1")
        .args(["--exact", test, "--nocapture"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Adds the ranks of all units, and prints the sum, if this process is a unit.
fn be_unit() {
    if std::env::var_os(UNIT).is_none() {
        return;
    }
    let work = || -> Result<f64, Box<dyn Error>> {
        let fabric = samite::init()?;
        // The test starts another process meanwhile.
        if let Ok(file) = std::env::var("SAMITE_TEST_STAY") {
            std::fs::write(&file, "")?;
            while std::path::Path::new(&file).exists() {
                std::thread::yield_now();
            }
            return Ok(0.0);
        }
        let pgas = Pgas::new(&fabric)?;
        let (world, mut sum) = (pgas.world(), [0.0]);
        world.all_reduce(&[f64::from(world.rank() + 1)], &mut sum, Sum)?;
        println!("{} of {}: {}", world.rank(), world.size(), sum[0]);
        Ok(sum[0])
    };
    if let Err(error) = work() {
        eprintln!("Error: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn a_job_joins_the_domain_of_a_running_agent() {
    be_unit();
    let test = "by_hand::a_job_joins_the_domain_of_a_running_agent";
    let agent = Agent::start("job-joins");
    // One after the other: the domain outlives its jobs.
    for _ in 0..2 {
        let binary = std::env::current_exe().expect("a path");
        let output = command(env!("CARGO_BIN_EXE_samite"))
            .args(["run", "--domain", &agent.domain, "-n", "3"])
            .arg(binary)
            .args(["--exact", test, "--nocapture"])
            .env(UNIT, "1")
            .output()
            .expect("samite can be started");
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        for rank in 0..3 {
            assert!(said.contains(&format!("{rank} of 3: 6\n")), "{said}");
        }
    }
}

/// The agents of two nodes form one domain, and processes that join it on either node are a job.
#[test]
fn agents_of_two_nodes_are_one_domain() {
    be_unit();
    let test = "by_hand::agents_of_two_nodes_are_one_domain";
    let name = samite_testkit::full_name("suite::by_hand", "agents_of_two_nodes_are_one_domain");
    let hint = "install libucx0: ci/packages.txt";
    if !samite_testkit::require(&name, samite::has_ucx(), hint) {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let secret = folder.path().join("secret").display().to_string();
    let network = [
        "--transports",
        "tcp",
        "--devices",
        "lo",
        "--secret",
        &secret,
    ];
    let listen = ["--listen", "127.0.0.1:0"];
    let first = [&listen[..], &network, &["--node", "one"]].concat();
    let first = Agent::start_with("nodes-one", &first);
    let address = || {
        let info = command(env!("CARGO_BIN_EXE_samite"))
            .args(["info", "--json", "--domain", &first.domain])
            .output()
            .expect("samite can be started");
        let info: serde_json::Value = serde_json::from_slice(&info.stdout).expect("JSON");
        info["domain"]["nodes"].clone()
    };
    let nodes = address();
    assert_eq!(nodes[0]["name"], "one", "{nodes}");
    let address_of_first = nodes[0]["address"].as_str().expect("an address").to_owned();
    let join = ["--join", &address_of_first];
    let second = [&listen[..], &network, &join, &["--node", "two"]].concat();
    let second = Agent::start_with("nodes-two", &second);
    let nodes = address();
    assert_eq!(nodes[1]["name"], "two", "{nodes}");
    for round in 0..3 {
        let start = |number: &str, domain: &str| {
            let job = format!("hand-{round}");
            let mut unit = rank(test, domain, number, "3");
            unit.env("SAMITE_JOB", job).spawn().expect("a unit")
        };
        let units = [
            start("0", &first.domain),
            start("1", &second.domain),
            start("2", &first.domain),
        ];
        for (rank, unit) in units.into_iter().enumerate() {
            let output = unit.wait_with_output().expect("it ends");
            let said = text(&output);
            assert!(output.status.success(), "{said}");
            assert!(said.contains(&format!("{rank} of 3: 6\n")), "{said}");
        }
    }
    // A stranger is refused, with a sentence.
    let wrong = folder.path().join("wrong");
    std::fs::write(&wrong, "another secret of a domain").expect("a file");
    std::fs::set_permissions(&wrong, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    let refused = |more: &[&str], says: &str| {
        let output = command(env!("CARGO_BIN_EXE_samite"))
            .args(["agent", "--domain", "nodes-three"])
            .args(more)
            .output()
            .expect("samite can be started");
        let said = text(&output);
        assert!(!output.status.success() && said.contains(says), "{said}");
    };
    let wrong = wrong.display().to_string();
    let stranger = ["--secret", &wrong, "--node", "three"];
    refused(&[&listen[..], &join, &stranger].concat(), "another secret");
    let named = ["--secret", &secret, "--node", "two"];
    refused(
        &[&listen[..], &join, &named].concat(),
        "another name (--node NAME)",
    );
    let nobody = ["--join", "127.0.0.1:1", "--secret", &secret];
    refused(&[&listen[..], &nobody].concat(), "no agent answers");
    refused(
        &["--listen", "0.0.0.0:0", "--secret", &secret],
        "name an address",
    );
    refused(&["--listen", "127.0.0.1:0"], "--secret FILE");
}

/// Returns a process that is to be this rank of a job `hand`.
fn rank(test: &str, domain: &str, rank: &str, size: &str) -> Command {
    let mut command = own(test);
    command
        .env("SAMITE_DOMAIN", domain)
        .env("SAMITE_JOB", "hand")
        .env("SAMITE_RANK", rank)
        .env("SAMITE_SIZE", size);
    command
}

#[test]
fn processes_with_ranks_are_a_job() {
    be_unit();
    let test = "by_hand::processes_with_ranks_are_a_job";
    let agent = Agent::start("ranks");
    let start = |number| {
        let mut command = rank(test, &agent.domain, number, "2");
        command.spawn().expect("a test binary can be started again")
    };
    for (at, unit) in ["0", "1"].map(start).into_iter().enumerate() {
        let output = unit.wait_with_output().expect("it was started");
        let said = text(&output);
        assert!(said.contains(&format!("{at} of 2: 3\n")), "{said}");
    }
}

#[test]
fn ranks_that_clash_are_refused() {
    be_unit();
    let test = "by_hand::ranks_that_clash_are_refused";
    let agent = Agent::start("clash");
    let folder = tempfile::tempdir().expect("a scratch folder");
    let there = folder.path().join("there");
    let mut first = rank(test, &agent.domain, "0", "2")
        .env("SAMITE_TEST_STAY", &there)
        .spawn()
        .expect("a test binary can be started again");
    while !there.exists() {
        assert!(first.try_wait().expect("it was started").is_none());
        std::thread::yield_now();
    }
    let refused = |command: &mut Command, sentence: &str| {
        let output = command
            .output()
            .expect("a test binary can be started again");
        let said = text(&output);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains(sentence), "{said}");
    };
    refused(
        &mut rank(test, &agent.domain, "0", "2"),
        "unit 0 of job hand has already joined",
    );
    refused(
        &mut rank(test, &agent.domain, "1", "3"),
        "of job hand says that its program has 3 units, but",
    );
    refused(
        rank(test, &agent.domain, "1", "2").env_remove("SAMITE_JOB"),
        "SAMITE_SIZE is 2, but SAMITE_JOB is not set; set it (any name, the same for all of them)",
    );
    refused(
        rank(test, &agent.domain, "1", "2").env_remove("SAMITE_DOMAIN"),
        "SAMITE_SIZE is 2, but SAMITE_DOMAIN is not set; set it (the domain of a running `samite agent`)",
    );
    std::fs::remove_file(&there).expect("it is there");
    assert!(first.wait().expect("it was started").success());
}

/// Says which program of `docs/staging.md` this process is.
const PROGRAM: &str = "SAMITE_TEST_PROGRAM";

/// A writer, of which each rank writes a row of every step, and a reader that adds them up.
fn write_or_read(program: &str) -> Result<(), Box<dyn Error>> {
    let fabric = samite::init()?;
    let stage = Stage::join(&fabric)?;
    if program == "reader" {
        for step in stage.reader("rows")? {
            let all: Array2<f64> = step?.get("u", ..)?;
            println!("read {}", all.sum());
        }
        return Ok(());
    }
    let own = fabric.identity();
    let mut rows = stage.writer("rows")?;
    for _ in 0..3 {
        let mut step = rows.step()?;
        let row = Array2::from_elem((1, 4), f64::from(own.rank + 1));
        let shape = [u64::from(own.size), 4];
        step.put("u", shape, [u64::from(own.rank), 0], row.view())?;
        step.commit()?;
    }
    Ok(rows.close()?)
}

/// Returns the lines of `docs/staging.md` that start a program of several processes by hand.
fn lines_of_staging() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/staging.md");
    let text = std::fs::read_to_string(path).expect("the document is there");
    let mut blocks = text.split("```");
    let lines = blocks.find_map(|block| block.strip_prefix("sh\nexport SAMITE_DOMAIN=lab\n"));
    lines.expect("the document says how").to_owned()
}

#[test]
fn ranks_of_a_writer_start_as_the_document_says() {
    if let Ok(program) = std::env::var(PROGRAM) {
        if let Err(error) = write_or_read(&program) {
            eprintln!("Error: {error}");
            std::process::exit(1);
        }
        std::process::exit(0);
    }
    let test = "by_hand::ranks_of_a_writer_start_as_the_document_says";
    let agent = Agent::start("documented");
    let folder = tempfile::tempdir().expect("a scratch folder");
    std::fs::create_dir_all(folder.path().join("target/debug")).expect("it is empty");
    let binary = std::env::current_exe().expect("a path");
    for program in ["writer", "reader"] {
        let path = folder.path().join("target/debug").join(program);
        let this = binary.display();
        let script = format!(
            "#!/bin/sh\n{PROGRAM}={program} exec '{this}' --exact {test} --nocapture --quiet\n"
        );
        std::fs::write(&path, script).expect("the folder can be written");
        let may_run = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, may_run).expect("it is our file");
    }
    // The failure of any program is that of the script.
    let lines = lines_of_staging().replace(" &\n", " & all=\"$all $!\"\n");
    let lines = format!("set -e\n{lines}for one in $all; do wait $one; done\n");
    let output = command("sh")
        .args(["-c", &lines])
        .current_dir(&folder)
        .env("SAMITE_DOMAIN", &agent.domain)
        .output()
        .expect("a shell can be started");
    let printed = text(&output);
    assert!(output.status.success(), "{lines}{printed}");
    assert_eq!(printed.matches("read 12\n").count(), 3, "{printed}");
}
