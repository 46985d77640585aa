//! `samite capsule`: makes capsules of code, and shows, signs and verifies them.

use crate::screen::{say, table};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use samite::mobile::{Builder, Capsule, KERNEL_HEADER, Processor, SigningKey};
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The compiler of kernels in C.
const CLANG: &str = "clang-22";
/// The LLVM that it belongs to, and that units load for bitcode.
const LLVM: u16 = 22;

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
        /// The public key of the signer, in hexadecimal [default: any signer, who is shown]
        #[arg(long)]
        key: Option<String>,
    },
}

/// Options of `samite capsule build`.
#[derive(Args)]
pub(crate) struct BuildArgs {
    /// Forms of the same code; a name before a colon says the processor of .bc and .so files:
    /// aarch64:kernel.so
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
            if let Some(key) = key.filter(|key| !key.eq_ignore_ascii_case(&signer)) {
                bail!("{} is signed by {signer}, not by {key}", file.display());
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
    let mut made = made.with_context(|| format!("{} cannot be made", file.display()))?;
    writeln!(made, "{}", hex(&secret))?;
    Ok(SigningKey::from_bytes(&secret))
}

fn secret(file: &Path) -> Result<SigningKey> {
    let text = fs::read_to_string(file);
    let text = text.with_context(|| format!("{} cannot be read", file.display()))?;
    let bytes = unhex(&text);
    let bytes = bytes.with_context(|| {
        let file = file.display();
        format!("{file} is no secret key: it has 64 hexadecimal digits (`samite capsule key {file}` makes one)")
    })?;
    Ok(SigningKey::from_bytes(&bytes))
}

fn build(args: &BuildArgs) -> Result<()> {
    let mut forms = Vec::new();
    let folder = tempfile::tempdir()?;
    for input in &args.inputs {
        forms.extend(forms_of(input, args.native, folder.path())?);
    }
    let mut entries = args.entries.clone();
    if entries.is_empty() {
        let wasm = forms.iter().find(|form| matches!(form, Form::Wasm(_)));
        let Some(Form::Wasm(code)) = wasm else {
            bail!("name the entries (--entry NAME): only WebAssembly says which it has");
        };
        entries = Capsule::from_wasm(code.clone())?.entries().to_vec();
        ensure!(
            !entries.is_empty(),
            "no exported function has the type of an entry, (i32, i32) -> i32"
        );
    }
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
    Bitcode(Processor, Vec<u8>),
    Elf(Processor, Vec<u8>),
}

impl Form {
    fn add(self, builder: Builder) -> Builder {
        match self {
            Form::Wasm(code) => builder.wasm(code),
            Form::Bitcode(of, code) => builder.bitcode(of, LLVM, code),
            Form::Elf(of, code) => builder.elf(of, code),
        }
    }
}

/// Reads, or compiles, the forms of an input.
fn forms_of(input: &str, native: bool, folder: &Path) -> Result<Vec<Form>> {
    let (processor, name) = match input.split_once(':') {
        Some(("x86-64", name)) => (Processor::X86, name),
        Some(("aarch64", name)) => (Processor::Arm, name),
        _ => (Processor::HERE, input),
    };
    let file = Path::new(name);
    let bytes = || fs::read(file).with_context(|| format!("{name} cannot be read"));
    let extension = file.extension().and_then(|extension| extension.to_str());
    Ok(match extension {
        Some("wasm") => vec![Form::Wasm(bytes()?)],
        Some("wat") => {
            let text = String::from_utf8(bytes()?).context("a text")?;
            let capsule = Capsule::from_wat(&text).with_context(|| name.to_owned())?;
            vec![Form::Wasm(capsule.part(&capsule.parts()[0]).to_vec())]
        }
        Some("bc") => vec![Form::Bitcode(processor, bytes()?)],
        Some("so") => vec![Form::Elf(processor, bytes()?)],
        Some("c") => compiled(file, native, folder)?,
        _ => bail!("{name}: a kernel is a .wat, .wasm, .c, .bc or .so file"),
    })
}

/// Compiles a kernel in C.
fn compiled(file: &Path, native: bool, folder: &Path) -> Result<Vec<Form>> {
    fs::write(folder.join("samite_kernel.h"), KERNEL_HEADER)?;
    let compile = |flags: &str, output: &str| -> Result<Vec<u8>> {
        let output = folder.join(output);
        let mut clang = Command::new(CLANG);
        clang
            .args(["-O3", "-ffreestanding"])
            .args(flags.split_whitespace());
        clang.arg("-I").arg(folder).arg(file).arg("-o").arg(&output);
        let ended = clang.status().with_context(|| {
            format!("{CLANG} cannot be started: install it (apt-get install {CLANG} lld-{LLVM})")
        })?;
        ensure!(
            ended.success(),
            "{CLANG} could not compile {}",
            file.display()
        );
        Ok(fs::read(output)?)
    };
    let wasm = "--target=wasm32 -mbulk-memory -msimd128 -nostdlib -Wl,--no-entry,--export-dynamic \
                -Xlinker --import-memory=samite,memory";
    let mut forms = vec![Form::Wasm(compile(wasm, "kernel.wasm")?)];
    if native {
        for (of, target) in [
            (Processor::X86, "x86_64-pc-linux-gnu"),
            (Processor::Arm, "aarch64-unknown-linux-gnu"),
        ] {
            let flags = format!("--target={target} -emit-llvm -c");
            forms.push(Form::Bitcode(of, compile(&flags, "kernel.bc")?));
        }
        let flags = "-fPIC -shared -nostdlib -fvisibility=hidden -DSAMITE_ELF";
        forms.push(Form::Elf(Processor::HERE, compile(flags, "kernel.so")?));
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
        let producer = match part.producer {
            0 => String::new(),
            major => format!("LLVM {major}"),
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
