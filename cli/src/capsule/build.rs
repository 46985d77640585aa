//! Makes a capsule of files, each of which is one form of the same code.

use super::{inspect, write};
use crate::screen::note;
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use samite::mobile::{Builder, Capsule, Error, Kind, Part, Processor, Refused, clang};
use std::fs;
use std::path::{Path, PathBuf};

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
        let has = Capsule::entries_of_wasm(code)?;
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

pub(super) fn build(args: &BuildArgs) -> Result<()> {
    check_output(args)?;
    let is_c = |input: &String| Path::new(input).extension().is_some_and(|of| of == "c");
    ensure!(
        !args.native || args.inputs.iter().any(is_c),
        "--native is for kernels in C: no input is a .c file"
    );
    let (mut forms, mut names) = (Vec::new(), Vec::new());
    let folder = tempfile::tempdir()?;
    for input in &args.inputs {
        let of = forms_of(input, args.native, folder.path())?;
        names.extend(of.iter().map(|_| input));
        forms.extend(of);
    }
    let mut entries = args.entries.clone();
    if entries.is_empty() {
        let wasm = forms.iter().find(|form| matches!(form, Form::Wasm(_)));
        let Some(Form::Wasm(code)) = wasm else {
            bail!(
                "name the entries (--entry NAME): without WebAssembly, they cannot be read from the code"
            );
        };
        entries = Capsule::entries_of_wasm(code)?;
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
    // The name of a function, if there is one, comes last, and is no input.
    for (part, name) in capsule.parts().iter().zip(names) {
        let is_named = split(name)?.0.is_some();
        check(&capsule, part, is_named).with_context(|| name.to_owned())?;
    }
    write(&args.output, capsule.bytes())?;
    inspect(&args.output, &capsule)
}

/// Checks what can be checked of a part without running it. Its processor may have been named.
fn check(capsule: &Capsule, part: &Part, is_named: bool) -> Result<()> {
    let form = || format!("{} of {}", part.kind.name(), part.processor.name());
    match capsule.check(part) {
        Ok(()) => Ok(()),
        Err(Error::Refused(Refused::NoEngine(why))) => {
            note(format_args!("the {} was not checked: {why}", form()));
            Ok(())
        }
        Err(error) => {
            let hint = match part.kind == Kind::Bitcode && !is_named {
                true => ". Its file has no processor before its name, as aarch64:kernel.bc has",
                false => "",
            };
            Err(anyhow!("no unit would run its {}: {error}{hint}", form()))
        }
    }
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
pub(super) fn producer(major: u16) -> String {
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
        _ if bytes.starts_with(b"(") => bail!("it is a module as text: name it .wat"),
        _ => {
            has_entry(&bytes)?;
            Form::Wasm(bytes)
        }
    })
}

fn has_entry(wasm: &[u8]) -> Result<()> {
    let entries = Capsule::entries_of_wasm(wasm)?;
    ensure!(
        !entries.is_empty(),
        "no exported function has the type of an entry, (i32, i32) -> i32"
    );
    Ok(())
}

/// Compiles a kernel in C.
fn compiled(file: &Path, native: bool, folder: &Path) -> Result<Vec<Form>> {
    let compile = |flags: Vec<&str>| clang::compile(file, &flags, folder);
    let wasm = compile(clang::wasm())?;
    if Capsule::entries_of_wasm(&wasm)?.is_empty() {
        bail!(
            "it has no entry: mark each with SAMITE_KERNEL: \
             SAMITE_KERNEL int32_t name(uint8_t *payload, uint32_t len)"
        );
    }
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
