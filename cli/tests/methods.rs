//! The shipped workflows with each method and each policy: a setting away, and right with all of them.

use std::path::Path;
use std::process::Command;

const METHODS: [&str; 5] = ["stream", "local", "server", "graph", "file"];
const POLICIES: [&str; 6] = [
    "block",
    "drop_oldest",
    "drop_newest",
    "latest",
    "every 3",
    "spill",
];

/// Runs a workflow with these settings of streams, which must find its own result to be right.
fn runs(name: &str, parameters: &str, method: &str, policy: &str) {
    let folder = tempfile::tempdir().expect("a folder for what is written");
    let workflows = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workflows");
    let servers = if method == "server" { "2" } else { "0" };
    let output = Command::new(env!("CARGO_BIN_EXE_samite"))
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .current_dir(folder.path())
        .arg("run")
        .arg(workflows.join(name))
        .args(parameters.split_whitespace())
        .args(["--servers", servers])
        .args(["--config", &format!("stage.method={method}")])
        .args(["--config", &format!("stage.policy={policy}")])
        .output()
        .expect("samite can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("SUCCESSFUL"),
        "{name}, {method}, {policy}: {text}{errors}"
    );
}

#[test]
fn the_synthetic_stream_is_right_with_each_method_and_policy() {
    let parameters = "--shape 40,30 --steps 11 --pattern columns --readers 3";
    for method in METHODS {
        runs("synthetic.toml", parameters, method, "block");
    }
    for policy in POLICIES {
        runs("synthetic.toml", parameters, "stream", policy);
    }
}

#[test]
fn moments_are_right_with_each_method_and_policy() {
    let parameters = "--size 12 --steps 11 --readers 2";
    for method in METHODS {
        runs("laplace.toml", parameters, method, "block");
    }
    for policy in POLICIES {
        runs("laplace.toml", parameters, "stream", policy);
    }
}
