//! `samite capsule`: makes capsules of code, and shows, signs and verifies them.

mod build;
mod key;

use crate::screen::{note, say, table};
use anyhow::{Context, Result, bail};
use build::{BuildArgs, build, producer};
use clap::Subcommand;
use key::hex;
use samite::mobile::{Capsule, Kind};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Commands about capsules.
#[derive(Subcommand)]
pub(crate) enum CapsuleCommand {
    /// Make a capsule of kernels: .wat, .wasm, .c (by clang-22), .bc (bitcode), .so (machine code)
    Build(BuildArgs),
    /// Show what is in a capsule
    Inspect {
        /// The capsule
        file: PathBuf,
    },
    /// Make a key, or print its public half
    Key {
        /// The file of the secret key; it is made if it does not exist
        file: PathBuf,
    },
    /// Sign a capsule, in place or into another file
    Sign {
        /// The capsule
        file: PathBuf,
        /// The file of the secret key (`samite capsule key`)
        #[arg(long)]
        key: PathBuf,
        /// Where the signed capsule goes [default: the same file]
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
    /// Verify the signature of a capsule; fails without one
    Verify {
        /// The capsule
        file: PathBuf,
        /// The public key of the signer: its 64 hexadecimal digits, or a file with them, or the
        /// file of its secret key [default: any signer, who is shown]
        #[arg(long)]
        key: Option<String>,
    },
}

/// Runs a command about capsules.
pub(crate) fn run(command: CapsuleCommand) -> Result<ExitCode> {
    match command {
        CapsuleCommand::Build(args) => build(&args)?,
        CapsuleCommand::Inspect { file } => inspect(&file, &read(&file)?)?,
        CapsuleCommand::Key { file } => {
            let key = if file.exists() {
                key::secret(&file)?
            } else {
                let made = key::make(&file)?;
                let file = file.display();
                note(format_args!(
                    "{file} is a new secret key: whoever has it signs in your name. Units that \
                     list its public half, below, run what it signs"
                ));
                made
            };
            say(format_args!("{}\n", hex(key.verifying_key().as_bytes())))?;
        }
        CapsuleCommand::Sign { file, key, output } => {
            let capsule = read(&file)?;
            let secret = key::secret(&key)?;
            let signed = (capsule.sign(&secret))
                .with_context(|| format!("{} with its signature", file.display()))?;
            let output = output.as_deref().unwrap_or(&file);
            write(output, signed.bytes())?;
            let (output, hash) = (output.display(), signed.hash());
            let signer = hex(secret.verifying_key().as_bytes());
            say(format_args!("{output}: {hash} is signed by {signer}\n"))?;
        }
        CapsuleCommand::Verify { file, key } => {
            let capsule = read(&file)?; // A wrong signature is an error here.
            let Some(signer) = capsule.signer().map(|key| hex(key)) else {
                bail!("{} has no signature", file.display());
            };
            if let Some(key) = key
                && key::public(&key)? != signer
            {
                let file = file.display();
                bail!("{file} is signed by {signer}, not by the key {key}");
            }
            say(format_args!("{} is signed by {signer}\n", capsule.hash()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> Result<Capsule> {
    let bytes = fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    Capsule::decode(&bytes).with_context(|| file.display().to_string())
}

/// Writes a capsule, which replaces anything but a secret key.
fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    if key::is_secret(file) {
        let file = file.display();
        bail!(
            "{file} has a secret key, which the capsule would replace: give it another name (-o)"
        );
    }
    samite_report::replace(file, bytes)
        .with_context(|| format!("{} cannot be written", file.display()))
}

fn inspect(file: &Path, capsule: &Capsule) -> Result<()> {
    say(format_args!("file     {}\n", file.display()))?;
    say(format_args!("hash     {}\n", capsule.hash()))?;
    say(format_args!("entries  {}\n", capsule.entries().join(", ")))?;
    let signer = capsule.signer().map_or("nobody".into(), |key| hex(key));
    say(format_args!("signer   {signer}\n"))?;
    say(format_args!("bytes    {}\n", capsule.bytes().len()))?;
    let mut parts = table(&["part", "processor", "producer", "bytes"]);
    for part in capsule.parts() {
        let producer = match part.kind {
            Kind::Bitcode => producer(part.producer),
            _ => String::new(),
        };
        parts.add_row([
            part.kind.name().to_owned(),
            part.processor.name().to_owned(),
            producer,
            capsule.part(part).len().to_string(),
        ]);
    }
    say(format_args!("{parts}\n"))
}
