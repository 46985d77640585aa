//! The workflow `video.toml`: its output is that of a sequential run, and it ends with an error
//! that says what is wrong with a clip.

use samite_testkit::require;
use std::path::Path;
use std::process::{Command, Output};

fn command(options: &[&str]) -> Command {
    let workflow = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workflows/video.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_samite"));
    command
        .args(["run".as_ref(), workflow.as_os_str()])
        .args(options)
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG");
    command
}

fn video(options: &[&str]) -> Output {
    command(options).output().expect("samite can be started")
}

/// Runs one unit of a built-in program.
fn samite(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_samite"))
        .args(["run", "-n", "1"])
        .args(words)
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
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
        assert!(!Path::new(&out).exists(), "no output is taken for complete");
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
    let figures = std::fs::read_to_string(&second).expect("figures");
    let figures: serde_json::Value = serde_json::from_str(&figures).expect("JSON");
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
