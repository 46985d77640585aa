//! `cargo xtask wheel`, and the tests of the Python package with a wheel. `cargo xtask test` runs
//! the same tests with the module of its own build (`bindings/python/tests/package.rs`).

use crate::arrows;
use crate::command::{self, run_with};
use crate::parts::python_folder;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// The package.
const FOLDER: &str = "bindings/python";

/// Makes a wheel of the release build, and prints its path.
pub(crate) fn wheel() -> Result<()> {
    println!("{}", build("release")?.display());
    Ok(())
}

/// Runs maturin, and returns the wheel that it has written.
fn build(profile: &str) -> Result<PathBuf> {
    let own = python_folder().map(|python| python.join("bin/maturin"));
    let own = own.filter(|maturin| maturin.exists());
    let maturin = own.map_or("maturin".to_owned(), |own| own.display().to_string());
    if !command::succeeds(&maturin, &["--version"]) {
        bail!("maturin is not installed: pip install maturin, or ci/setup");
    }
    let target = arrows::metadata()?.target_directory;
    let folder = Path::new(&target).join("wheels").join(profile);
    // A wheel of another version would be there, too.
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let (manifest, out) = (format!("{FOLDER}/Cargo.toml"), folder.display().to_string());
    let line = [
        "build",
        "--manifest-path",
        &manifest,
        "--out",
        &out,
        "--profile",
        profile,
    ];
    run_with(&[], &maturin, &line)?;
    let files = fs::read_dir(&folder).with_context(|| format!("cannot read {out}"))?;
    let mut files = files.flatten().map(|file| file.path());
    let wheel = files.find(|path| path.extension().is_some_and(|end| end == "whl"));
    wheel.with_context(|| format!("maturin has left no wheel in {out}"))
}

/// Runs the tests with a wheel that is installed in a folder of its own.
pub(crate) fn test_wheel() -> Result<()> {
    let Some(environment) = python_folder() else {
        bail!("the Python environment is missing: ci/setup");
    };
    let python = environment.join("bin/python").display().to_string();
    command::cargo(&["build", "--package", "samite-cli"])?;
    let wheel = build("dev")?;
    let target = PathBuf::from(arrows::metadata()?.target_directory);
    let package = wheel.with_file_name("installed").display().to_string();
    let wheel = wheel.display().to_string();
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        &package,
        &wheel,
    ];
    run_with(&[], &python, &install)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", target.join("debug").display());
    let tests = format!("{FOLDER}/tests");
    let environment = [("PYTHONPATH", package.as_str()), ("PATH", &path)];
    let line = [
        "-B",
        "-m",
        "unittest",
        "discover",
        "--start-directory",
        &tests,
    ];
    run_with(&environment, &python, &line)
}
