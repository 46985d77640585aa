//! The workflow `video.toml`: its output is that of a sequential run, and it ends with an error
//! that says what is wrong with a clip.

use samite_testkit::require;
use std::path::Path;
use std::process::{Command, Output};

fn video(options: &[&str]) -> Output {
    let workflow = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workflows/video.toml");
    Command::new(env!("CARGO_BIN_EXE_samite"))
        .args(["run".as_ref(), workflow.as_os_str()])
        .args(options)
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
    for via in ["dsm", "messages"] {
        let said = succeeds(&[&clip[..], &["--via", via]].concat());
        assert!(said.contains("50 of 200 x 111"), "{said}");
        found.push(checksum(&said).to_owned());
    }
    assert_eq!((found[0].len(), &found[0]), (16, &found[1]));
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
    for via in ["dsm", "messages"] {
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
