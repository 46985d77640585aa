//! `samite capsule`: makes capsules of code, and shows, signs and verifies them.

use crate::screen::{say, table};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use samite::mobile::{Builder, Capsule, Kind, Part, Processor, SigningKey, clang};
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
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
        /// The public key of the signer, in hexadecimal, or the file of its secret key [default:
        /// any signer, who is shown]
        #[arg(long)]
        key: Option<String>,
    },
}

/// Options of `samite capsule build`.
#[derive(Args)]
pub(crate) struct BuildArgs {
    /// Forms of the same code; a name before a colon says the processor of a .bc file:
    /// aarch64:kernel.bc [default: this processor]. A .so file says it itself
    #[arg(required = true)]
    inputs: Vec<String>,
    /// Where the capsule goes
    #[arg(short, long)]
    output: PathBuf,
    /// An entry [default: those of the WebAssembly]
    #[arg(long = "entry")]
    entries: Vec<String>,
    /// A function of the program that a unit runs in place of the code, if it has one
    #[arg(long)]
    function: Option<String>,
    /// Of C, also bitcode for x86-64 and aarch64, and a shared object for this processor
    #[arg(long)]
    native: bool,
}

/// Runs a command about capsules.
pub(crate) fn run(command: CapsuleCommand) -> Result<ExitCode> {
    match command {
        CapsuleCommand::Build(args) => build(&args)?,
        CapsuleCommand::Inspect { file } => inspect(&read(&file)?)?,
        CapsuleCommand::Key { file } => {
            let key = if file.exists() {
                secret(&file)?
            } else {
                make_key(&file)?
            };
            let public = hex(key.verifying_key().as_bytes());
            say(format_args!("{public}\n"))?;
        }
        CapsuleCommand::Sign { file, key, output } => {
            let signed = read(&file)?.sign(&secret(&key)?)?;
            write(output.as_deref().unwrap_or(&file), signed.bytes())?;
            say(format_args!("{} signed\n", signed.hash()))?;
        }
        CapsuleCommand::Verify { file, key } => {
            let capsule = read(&file)?; // A wrong signature is an error here.
            let Some(signer) = capsule.signer().map(|key| hex(key)) else {
                bail!("{} has no signature", file.display());
            };
            let wanted = key.as_deref().map(public).transpose()?;
            if let Some(wanted) = wanted.filter(|wanted| *wanted != signer) {
                bail!("{} is signed by {signer}, not by {wanted}", file.display());
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

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    samite_report::replace(file, bytes)
        .with_context(|| format!("{} cannot be written", file.display()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let text = text.trim();
    let digits = text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok();
    let bytes: Option<Vec<u8>> = digits.then(|| (0..32).map(byte).collect()).flatten();
    bytes?.try_into().ok()
}

/// Makes a key that only its owner can read; never replaces one.
fn make_key(file: &Path) -> Result<SigningKey> {
    let mut secret = [0; 32];
    let got = rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    ensure!(
        got == secret.len(),
        "the system gave {got} random bytes of {}",
        secret.len()
    );
    let made = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file);
    let mut made = made.with_context(|| format!("{} cannot be created", file.display()))?;
    writeln!(made, "{}", hex(&secret))?;
    Ok(SigningKey::from_bytes(&secret))
}

fn secret(file: &Path) -> Result<SigningKey> {
    let text = fs::read_to_string(file);
    let text = text.with_context(|| format!("the key {} cannot be read", file.display()))?;
    let bytes = unhex(&text);
    let bytes = bytes.with_context(|| {
        let file = file.display();
        format!(
            "{file} is no secret key: a file with one has 64 hexadecimal digits. \
             `samite capsule key` with the name of a new file makes one"
        )
    })?;
    Ok(SigningKey::from_bytes(&bytes))
}

/// Returns a public key, as it is written or as that of a file with a secret key.
fn public(key: &str) -> Result<String> {
    if let Some(bytes) = unhex(key) {
        return Ok(hex(&bytes));
    }
    let file = Path::new(key);
    ensure!(
        file.exists(),
        "`{key}` is no public key, which has 64 hexadecimal digits, and no file of a secret key"
    );
    Ok(hex(secret(file)?.verifying_key().as_bytes()))
}

/// Checks that the capsule does not replace what it is made of.
fn check_output(args: &BuildArgs) -> Result<()> {
    let same = |file: &Path| match (fs::canonicalize(file), fs::canonicalize(&args.output)) {
        (Ok(file), Ok(output)) => file == output,
        _ => false,
    };
    for input in &args.inputs {
        let (_, name) = split(input)?;
        ensure!(
            !same(Path::new(name)),
            "{name} is an input: the capsule would replace it. Give it another name (-o)"
        );
    }
    Ok(())
}

/// Checks that no form occurs twice, and that WebAssembly has the entries. A unit tries all forms
/// of one engine, in their order: bitcode of several versions of LLVM is no mistake.
fn check_forms(forms: &[Form], entries: &[String]) -> Result<()> {
    for (at, form) in forms.iter().enumerate() {
        let name = form.name();
        ensure!(
            !forms[..at].iter().any(|other| other.name() == name),
            "there are two inputs for {name}: a unit takes the first that it accepts. Leave one out"
        );
        let Form::Wasm(code) = form else { continue };
        let has = Capsule::from_wasm(code.clone())?.entries().to_vec();
        let missing = entries.iter().find(|entry| !has.contains(entry));
        if let Some(missing) = missing {
            bail!(
                "the WebAssembly has no entry `{missing}`: it has {}",
                has.join(", ")
            );
        }
    }
    Ok(())
}

fn build(args: &BuildArgs) -> Result<()> {
    check_output(args)?;
    let is_c = |input: &String| Path::new(input).extension().is_some_and(|of| of == "c");
    ensure!(
        !args.native || args.inputs.iter().any(is_c),
        "--native is for kernels in C: no input is a .c file"
    );
    let mut forms = Vec::new();
    let folder = tempfile::tempdir()?;
    for input in &args.inputs {
        forms.extend(forms_of(input, args.native, folder.path())?);
    }
    let mut entries = args.entries.clone();
    if entries.is_empty() {
        let wasm = forms.iter().find(|form| matches!(form, Form::Wasm(_)));
        let Some(Form::Wasm(code)) = wasm else {
            bail!(
                "name the entries (--entry NAME): without WebAssembly, they cannot be read from the code"
            );
        };
        entries = Capsule::from_wasm(code.clone())?.entries().to_vec();
    }
    check_forms(&forms, &entries)?;
    let mut builder = Capsule::builder(entries);
    for form in forms {
        builder = form.add(builder);
    }
    if let Some(function) = &args.function {
        builder = builder.function(function);
    }
    let capsule = builder.build()?;
    write(&args.output, capsule.bytes())?;
    inspect(&capsule)
}

/// One form of code.
enum Form {
    Wasm(Vec<u8>),
    /// With the major version of the LLVM that made it; 0 if that is not known.
    Bitcode(Processor, u16, Vec<u8>),
    Elf(Processor, Vec<u8>),
}

impl Form {
    fn bitcode(of: Processor, code: Vec<u8>) -> Result<Form> {
        let producer = Part::producer_of(&code)
            .map_err(|error| anyhow!("{error}: clang makes it by -emit-llvm -c"))?;
        Ok(Form::Bitcode(of, producer, code))
    }

    /// Its name in messages, by which a capsule has it once.
    fn name(&self) -> String {
        match self {
            Form::Wasm(_) => "WebAssembly".to_owned(),
            Form::Bitcode(of, made_by, _) => {
                format!("bitcode of {} by {}", of.name(), producer(*made_by))
            }
            Form::Elf(of, _) => format!("machine code of {}", of.name()),
        }
    }

    fn add(self, builder: Builder) -> Builder {
        match self {
            Form::Wasm(code) => builder.wasm(code),
            Form::Bitcode(of, producer, code) => builder.bitcode(of, producer, code),
            Form::Elf(of, code) => builder.elf(of, code),
        }
    }
}

/// Names the producer of bitcode.
fn producer(major: u16) -> String {
    match major {
        0 => "an unknown compiler".to_owned(),
        major => format!("LLVM {major}"),
    }
}

/// Reads, or compiles, the forms of an input.
fn forms_of(input: &str, native: bool, folder: &Path) -> Result<Vec<Form>> {
    let (named, name) = split(input)?;
    let file = Path::new(name);
    let extension = file.extension().and_then(|extension| extension.to_str());
    if named.is_some() && !matches!(extension, Some("bc" | "so")) {
        bail!("{input}: a processor can be named for .bc and .so files only: write {name}");
    }
    let forms = match extension {
        Some("c") => compiled(file, native, folder),
        Some(extension @ ("wasm" | "wat" | "bc" | "so")) => {
            let bytes = fs::read(file).with_context(|| format!("{name} cannot be read"))?;
            form_of(extension, named, bytes).map(|form| vec![form])
        }
        _ => bail!("{name}: a kernel is a .wat, .wasm, .c, .bc or .so file"),
    };
    forms.with_context(|| name.to_owned())
}

/// Splits the name of a processor off an input, if it begins with one.
fn split(input: &str) -> Result<(Option<Processor>, &str)> {
    let Some((prefix, name)) = input.split_once(':') else {
        return Ok((None, input));
    };
    let known = [Processor::X86, Processor::Arm];
    match known.into_iter().find(|known| known.name() == prefix) {
        Some(processor) => Ok((Some(processor), name)),
        // The colon is part of the name of a file.
        None if prefix.contains('/') || Path::new(input).exists() => Ok((None, input)),
        None => bail!(
            "{input}: there is no such file, and `{prefix}` is not a processor (x86-64 or aarch64)"
        ),
    }
}

/// Checks code that was compiled before.
fn form_of(extension: &str, named: Option<Processor>, bytes: Vec<u8>) -> Result<Form> {
    Ok(match extension {
        "so" => {
            let of = Processor::of_object(&bytes)?;
            if let Some(named) = named.filter(|named| *named != of) {
                bail!("it is for {}, not for {}", of.name(), named.name());
            }
            Form::Elf(of, bytes)
        }
        "bc" => Form::bitcode(named.unwrap_or(Processor::HERE), bytes)?,
        "wat" => {
            let text = String::from_utf8(bytes).context("it is not UTF-8 text")?;
            let capsule = Capsule::from_wat(&text)?;
            Form::Wasm(capsule.part(&capsule.parts()[0]).to_vec())
        }
        _ => {
            Capsule::from_wasm(bytes.clone())?;
            Form::Wasm(bytes)
        }
    })
}

/// Compiles a kernel in C.
fn compiled(file: &Path, native: bool, folder: &Path) -> Result<Vec<Form>> {
    let compile = |flags: Vec<&str>| clang::compile(file, &flags, folder);
    let wasm = compile(clang::wasm())?;
    Capsule::from_wasm(wasm.clone()).context(
        "mark each entry with SAMITE_KERNEL: SAMITE_KERNEL int32_t name(uint8_t *payload, uint32_t len)",
    )?;
    let mut forms = vec![Form::Wasm(wasm)];
    if native {
        for of in [Processor::X86, Processor::Arm] {
            let arch = of.arch().context("a processor")?;
            forms.push(Form::bitcode(of, compile(clang::bitcode(arch))?)?);
        }
        let flags = clang::elf(std::env::consts::ARCH);
        forms.push(Form::Elf(Processor::HERE, compile(flags)?));
    }
    Ok(forms)
}

fn inspect(capsule: &Capsule) -> Result<()> {
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
