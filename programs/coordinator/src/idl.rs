//! The account's layout and its enumerations for the IDL, from `psyche_rules`: a second text of them could differ.

use std::collections::BTreeMap;

use anchor_lang::idl::types::{
    IdlArrayLen, IdlDefinedFields, IdlField, IdlRepr, IdlReprModifier, IdlSerialization, IdlType, IdlTypeDef,
    IdlTypeDefTy,
};
use anchor_lang::IdlBuild;
use psyche_rules::state::{Field, RECORDS};

use crate::account::CoordinatorAccount;

const STATE: &str = "State";

impl IdlBuild for CoordinatorAccount {
    fn create_type() -> Option<IdlTypeDef> {
        let state = RECORDS.iter().find(|(name, ..)| *name == STATE);
        state.map(|(_, _, fields)| describe(Self::get_full_path(), fields))
    }

    fn insert_types(types: &mut BTreeMap<String, IdlTypeDef>) {
        for (name, _, fields) in RECORDS.iter().filter(|(name, ..)| *name != STATE) {
            types.insert(name.to_string(), describe(name.to_string(), fields));
        }
    }

    fn get_full_path() -> String {
        "CoordinatorAccount".into()
    }
}

fn describe(name: String, fields: &[Field]) -> IdlTypeDef {
    let fields = fields.iter().map(|(name, _, size, written)| IdlField {
        name: name.to_string(),
        docs: vec![],
        ty: read_type(written, *size),
    });
    IdlTypeDef {
        name,
        docs: vec![],
        serialization: IdlSerialization::Bytemuck,
        repr: Some(IdlRepr::C(IdlReprModifier { packed: false, align: None })),
        generics: vec![],
        ty: IdlTypeDefTy::Struct { fields: Some(IdlDefinedFields::Named(fields.collect())) },
    }
}

/// The type that is written in Rust and has `size` bytes.
fn read_type(written: &str, size: usize) -> IdlType {
    if let Some(listed) = written.strip_prefix('[') {
        let entry = listed.rsplit_once(';').map_or(listed, |(entry, _)| entry);
        return match size_of_entry(entry) {
            Some(bytes) => list(read_type(entry, bytes), size / bytes),
            None => list(IdlType::U8, size), // lists of texts
        };
    }
    match written {
        "u8" => IdlType::U8,
        "u16" => IdlType::U16,
        "u32" => IdlType::U32,
        "u64" => IdlType::U64,
        "Hash" => list(IdlType::U8, size),
        "Bitmap" => list(IdlType::U64, size / 8),
        record if size_of_entry(record).is_some() => IdlType::Defined { name: record.into(), generics: vec![] },
        _ => IdlType::U8, // enumerations are bytes with named values
    }
}

fn list(entry: IdlType, len: usize) -> IdlType {
    IdlType::Array(Box::new(entry), IdlArrayLen::Value(len))
}

fn size_of_entry(written: &str) -> Option<usize> {
    match written {
        "u8" => Some(1),
        "u16" => Some(2),
        record => RECORDS.iter().find(|(name, ..)| *name == record).map(|(_, size, _)| *size),
    }
}

/// Prints the values of the enumerations as constants, in the way of Anchor's own parts: the build collects them.
#[test]
fn __anchor_private_print_idl_const_states() {
    use psyche_rules::enums::{AuditReason, AuditStatus, ChallengeState, ClientState, RunState, SlotState, StopReason};

    let enumerations = [
        ("RUN_STATE", RunState::VALUES),
        ("CLIENT_STATE", ClientState::VALUES),
        ("SLOT_STATE", SlotState::VALUES),
        ("STOP_REASON", StopReason::VALUES),
        ("AUDIT_STATUS", AuditStatus::VALUES),
        ("AUDIT_REASON", AuditReason::VALUES),
        ("CHALLENGE_STATE", ChallengeState::VALUES),
    ];
    for (name, values) in enumerations {
        for (value, number) in values {
            println!("--- IDL begin const ---");
            println!(r#"{{"name": "{name}_{value}", "type": "u8", "value": "{number}"}}"#);
            println!("--- IDL end const ---");
        }
    }
}
