//! What a module exports, read without compiling it.

use crate::Refused;
use wasmparser::{CompositeInnerType, ExternalKind, Parser, Payload, TypeRef, ValType};

/// Returns the names of the functions that a module exports with the type of an entry, `(i32, i32)
/// -> i32`, in its order.
///
/// # Errors
/// [`Refused::Invalid`]: it is no module, or has a function that runs when it starts, which no
/// limit of a call would hold for.
pub fn entries(code: &[u8]) -> Result<Vec<String>, Refused> {
    let invalid = |error: wasmparser::BinaryReaderError| Refused::Invalid(error.to_string());
    let (mut types, mut functions, mut exports) = (Vec::new(), Vec::new(), Vec::new());
    for payload in Parser::new(0).parse_all(code) {
        match payload.map_err(invalid)? {
            Payload::TypeSection(section) => {
                for group in section {
                    for of in group.map_err(invalid)?.into_types() {
                        types.push(is_entry(&of.composite_type.inner));
                    }
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    if let TypeRef::Func(of) = import.map_err(invalid)?.ty {
                        functions.push(of);
                    }
                }
            }
            Payload::FunctionSection(section) => {
                for of in section {
                    functions.push(of.map_err(invalid)?);
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export.map_err(invalid)?;
                    if export.kind == ExternalKind::Func {
                        exports.push((export.name.to_owned(), export.index));
                    }
                }
            }
            Payload::StartSection { .. } => {
                return Err(Refused::Invalid("it has a start function".into()));
            }
            _ => {}
        }
    }
    let is_wanted = |index: u32| {
        let of = functions.get(index as usize);
        of.and_then(|of| types.get(*of as usize))
            .copied()
            .unwrap_or(false)
    };
    exports.retain(|(_, index)| is_wanted(*index));
    Ok(exports.into_iter().map(|(name, _)| name).collect())
}

fn is_entry(of: &CompositeInnerType) -> bool {
    let CompositeInnerType::Func(of) = of else {
        return false;
    };
    of.params() == [ValType::I32; 2] && of.results() == [ValType::I32]
}
