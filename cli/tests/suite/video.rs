//! The workflow `video.toml`: its output is that of a sequential run, and it ends with an error
//! that says what is wrong with a clip.

use samite_testkit::require;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn workflow(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workflows");
    folder.join(name).display().to_string()
}

fn samite_command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_samite"));
    command
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG");
    command
}

fn command(options: &[&str]) -> Command {
    let mut command = samite_command();
    command.args(["run", &workflow("video.toml")]).args(options);
    command
}

/// Returns what a successful run of `samite` printed.
fn run_ok(words: &[&str]) -> String {
    ok(samite_command().args(words))
}

fn ok(command: &mut Command) -> String {
    let output = command.output().expect("samite can be started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    said
}

/// Copies a workflow, whose runs have folders beside it, and the topologies. Returns its path.
fn copy_of(name: &str, folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for part in ["workflows", "topologies"] {
        std::fs::create_dir(folder.join(part)).expect("a scratch folder");
    }
    let path = folder.join("workflows").join(name);
    std::fs::copy(root.join("workflows").join(name), &path).expect("the workflow");
    for file in root.join("topologies").read_dir().expect("topologies") {
        let file = file.expect("a topology");
        let copy = folder.join("topologies").join(file.file_name());
        std::fs::copy(file.path(), copy).expect("a scratch folder");
    }
    path
}

fn video(options: &[&str]) -> Output {
    command(options).output().expect("samite can be started")
}

/// Runs one unit of a built-in program.
fn samite(words: &[&str]) -> Output {
    samite_command()
        .args(["run", "-n", "1"])
        .args(words)
        .output()
        .expect("samite can be started")
}

/// Returns what a successful run printed.
fn succeeds(options: &[&str]) -> String {
    let output = video(options);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.contains("SUCCESSFUL"), "{said}{errors}");
    said
}

/// Returns what a run said that failed.
fn fails(options: &[&str]) -> String {
    let output = video(options);
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn checksum(said: &str) -> &str {
    let line = said.lines().find(|line| line.contains("checksum"));
    line.and_then(|line| line.split_whitespace().nth(1))
        .unwrap_or_default()
}

#[test]
fn all_ways_give_the_same_frames() {
    let clip = ["--size", "200x111", "--frames", "50", "--workers", "3"];
    let mut found = Vec::new();
    let ways = [
        "sequential",
        "dsm",
        "dsm-fused",
        "dsm-strict",
        "mp-sync",
        "mp-async",
        "mp-async-each",
        "req-rep",
        "push-pull",
    ];
    for via in ways {
        let said = succeeds(&[&clip[..], &["--via", via]].concat());
        assert!(said.contains("50 of 200 x 111"), "{said}");
        found.push(checksum(&said).to_owned());
    }
    let several = workflow("video-servers.toml");
    let said = run_ok(&[
        "run",
        &several,
        "--size",
        "200x111",
        "--frames",
        "50",
        "--workers",
        "3",
    ]);
    found.push(checksum(&said).to_owned());
    assert_eq!(found[0].len(), 16);
    assert!(found.iter().all(|other| *other == found[0]), "{found:?}");
    // A copy gives others.
    let copied = succeeds(&[&clip[..], &["--kernel", "copy"]].concat());
    assert_ne!(checksum(&copied), found[0]);
}

#[test]
fn a_truncated_clip_is_no_complete_one() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (whole, cut, out) = (file("whole.y4m"), file("cut.y4m"), file("out.y4m"));
    let clip = ["--size", "64x48", "--frames", "5", "--kernel", "copy"];
    succeeds(&[&clip[..], &["--output", &whole]].concat());
    let bytes = std::fs::read(&whole).expect("the output");
    std::fs::write(&cut, &bytes[..bytes.len() - 1]).expect("a scratch folder");
    for via in ["dsm", "req-rep"] {
        let said = fails(&["--file", &cut, "--output", &out, "--via", via]);
        let sentence = "the y4m stream is truncated: frame 4 has 3071 of its 3072 bytes";
        assert!(said.contains(sentence), "{said}");
        assert!(said.contains("source.0"), "{said}");
        let found = folder.path().read_dir().expect("the scratch folder");
        assert_eq!(found.count(), 2, "nothing is left of an incomplete output");
    }
    let said = fails(&["--file", &file("missing.y4m")]);
    assert!(
        said.contains("missing.y4m could not be opened: No such"),
        "{said}"
    );
}

#[test]
fn a_real_clip_is_decoded_and_encoded() {
    let found = Command::new("ffmpeg").arg("-version").output();
    let is_there = found.is_ok_and(|output| output.status.success());
    let name = "video::a_real_clip_is_decoded_and_encoded";
    if !require(name, is_there, "install the Debian package ffmpeg") {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (clip, edges) = (file("clip.mkv"), file("edges.mp4"));
    succeeds(&[
        "--size", "160x120", "--frames", "30", "--kernel", "copy", "--output", &clip,
    ]);
    let said = succeeds(&["--file", &clip, "--output", &edges]);
    assert!(said.contains("30 of 160 x 120"), "{said}");
    let said = succeeds(&["--file", &edges]);
    assert!(said.contains("30 of 160 x 120"), "{said}");
    std::fs::write(&clip, "no video").expect("a scratch folder");
    let said = fails(&["--file", &clip]);
    assert!(said.contains("ffmpeg could not decode"), "{said}");
}

#[test]
fn runs_leave_figures_and_pages() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let clip = ["--size", "240x135", "--frames", "100", "--nodes", "paper"];
    let (first, second, page) = (file("dsm.json"), file("push.json"), file("run.html"));
    let said = succeeds(&[&clip[..], &["--figures", &first, "--report", &page]].concat());
    assert!(
        said.contains("ideal/time") && said.contains("run.html"),
        "{said}"
    );
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("RPI 3B+") && page.contains("data:image/png"));
    let push = [
        "--via",
        "push-pull",
        "--figures",
        &second,
        "--check",
        "false",
    ];
    let output = video(&[&clip[..], &push].concat());
    assert!(output.status.success());
    let figures = figures_of(Path::new(&second));
    assert_eq!(figures["format"], "samite-video/1");
    assert_eq!(figures["nodes"].as_array().map(Vec::len), Some(8));
    assert!(figures["verified"].is_null());
    // A page about both.
    let study = file("study.html");
    let output = samite(&["video-report", &first, &second, "--report", &study]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let study = std::fs::read_to_string(study).expect("a page");
    assert!(study.contains("2 runs") && study.contains("push-pull"));
    let output = samite(&["video-report", "/dev/null"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("/dev/null holds no figures of a run"),
        "{errors}"
    );
}

/// Reads a file of figures.
fn figures_of(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("figures");
    serde_json::from_str(&text).expect("JSON")
}

/// One or four servers, without and with the event log, in three ways: each run gives the frames of
/// a sequential run.
#[test]
fn servers_and_logs_change_no_frame() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = copy_of("video-matrix.toml", folder.path());
    let path = path.display().to_string();
    let clip = ["--size", "200x111", "--frames", "60", "--workers", "2"];
    let mut command = samite_command();
    command.args(["run", &path]).args(clip);
    ok(command.current_dir(folder.path()));
    let runs = folder.path().join("workflows/video-matrix");
    let mut checksums = Vec::new();
    let mut shown = 0;
    for servers in [1, 4] {
        for log in ["off", "full"] {
            for via in ["dsm", "dsm-fused", "dsm-strict"] {
                let run = runs.join(format!("{servers}-{log}-{via}"));
                let figures = figures_of(&run.join("figures.json"));
                let name = format!("{via}, servers: {servers}, log: {log}");
                assert_eq!(figures["label"], *name);
                assert_eq!(figures["verified"], true, "{name}");
                assert_eq!(figures["servers"], servers, "{name}");
                checksums.push(figures["checksum"].clone());
                let logs = run.join("samite-log");
                assert_eq!(logs.exists(), log == "full", "{name}");
                shown += 1;
            }
        }
    }
    assert!(
        checksums.iter().all(|sum| *sum == checksums[0]),
        "{checksums:?}"
    );
    let page = std::fs::read_to_string(runs.join("matrix.html")).expect("a page");
    assert!(page.contains(&format!("of all {shown} runs, bit by bit")));
    assert!(page.contains("dsm-strict, servers: 4, log: full"));
}

#[test]
fn a_study_leaves_a_page() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = copy_of("video-study.toml", folder.path());
    let path = path.display().to_string();
    let some = ["--size", "hd", "--frames", "16", "--via", "dsm"];
    run_ok(&[&["run", &path], &some[..]].concat());
    let sweep = folder.path().join("workflows/sweep");
    assert!(sweep.join("hd-dsm/figures.json").exists());
    let page = std::fs::read_to_string(sweep.join("study.html")).expect("a page");
    assert!(page.contains("RPI 3B+") && page.contains("16 frames"));
}

/// Samite, libzmq and Open MPI on one page, as far as they are installed.
#[test]
fn a_page_shows_samite_beside_its_peers() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let pages = folder.path().join("pages").display().to_string();
    let bench = |only: &str| {
        let words = ["bench", "video", "--pages", &pages, "--frames", "24"];
        run_ok(&[&words[..], &["--only", only]].concat())
    };
    let said = bench("HD/dsm-strict");
    assert!(said.contains("dsm-strict") && said.contains("HD"), "{said}");
    for peer in ["zmq-push-1", "openmpi-buffers"] {
        let said = bench(&format!("HD/{peer}"));
        let path = Path::new(&pages).join(format!("HD-{peer}.json"));
        if said.contains(&format!("without {peer}: it is not installed")) {
            assert!(!path.exists());
            continue;
        }
        let figures = figures_of(&path);
        let ours = figures_of(&Path::new(&pages).join("HD-dsm-strict.json"));
        assert_eq!(figures["format"], "samite-video/1");
        assert_eq!(figures["verified"], true);
        assert_eq!(figures["frames"], ours["frames"]);
        let needs = |figures: &Value| -> Vec<f64> {
            let nodes = figures["nodes"].as_array().expect("nodes").iter();
            nodes
                .map(|node| node["needs_s"].as_f64().expect("a time"))
                .collect()
        };
        let pairs = needs(&figures).into_iter().zip(needs(&ours));
        for (theirs, ours) in pairs {
            assert!((theirs - ours).abs() < 1e-6, "{theirs} and {ours}");
        }
        let keys = |figures: &Value| -> Vec<String> {
            figures
                .as_object()
                .expect("an object")
                .keys()
                .cloned()
                .collect()
        };
        assert_eq!(keys(&figures), keys(&ours));
        // The figures of earlier runs stay.
        let page = Path::new(&pages).join("video.html");
        let page = std::fs::read_to_string(page).expect("a page");
        assert!(page.contains(peer) && page.contains("dsm-strict"));
    }
    let output = samite_command()
        .args(["bench", "message", "--pages", &pages])
        .output()
        .expect("samite can be started");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("--pages is for the bench `video`"),
        "{errors}"
    );
}

#[test]
fn a_missing_ffmpeg_is_named() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let clip = folder.path().join("clip.mkv");
    std::fs::write(&clip, "not looked at").expect("a scratch folder");
    let clip = clip.display().to_string();
    let output = command(&["--file", &clip])
        .env("PATH", folder.path())
        .output();
    let output = output.expect("samite can be started");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("ffmpeg is not installed: install it"),
        "{said}"
    );
}
