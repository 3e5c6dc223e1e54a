//! The bodies of messages: what follows the 8 bytes that name an instruction.
//!
//! `psyche_rules::message` reads them, here as in every other backend of the rules, so a body is kept as bytes; nothing
//! may follow it. The fields stand here for the IDL.

use std::io::{Read, Result as IoResult, Write};

use anchor_lang::prelude::*;

/// The numbers of the kinds of messages; they are those of `psyche.core.rules.apply.KINDS`.
pub mod kind {
    pub const TICK: u8 = 1;
    pub const JOIN: u8 = 2;
    pub const LEAVE: u8 = 3;
    pub const WITHDRAW: u8 = 4;
    pub const WARMUP_WITNESS: u8 = 5;
    pub const WITNESS: u8 = 6;
    pub const HEALTH_CHECK: u8 = 7;
    pub const CHECKPOINT: u8 = 8;
    pub const REPORT_EQUIVOCATION: u8 = 9;
    pub const PAUSE: u8 = 10;
    pub const RESUME: u8 = 11;
    pub const RECLAIM_SLOT: u8 = 13;
    pub const SET_RATES: u8 = 14;
    pub const COLLECT: u8 = 15;
    pub const UPDATE: u8 = 16;
    pub const UPDATE_CLIENT_VERSION: u8 = 17;
    pub const AUDIT: u8 = 18;
    pub const JUDGE: u8 = 19;
}

macro_rules! bodies {
    ($($(#[$about:meta])* $name:ident { $($fields:tt)+ })+) => {
        $(
            $(#[$about])*
            #[derive(Clone)]
            pub struct $name {
                pub bytes: Vec<u8>,
            }

            impl AnchorSerialize for $name {
                fn serialize<W: Write>(&self, writer: &mut W) -> IoResult<()> {
                    writer.write_all(&self.bytes)
                }
            }

            impl AnchorDeserialize for $name {
                fn deserialize_reader<R: Read>(reader: &mut R) -> IoResult<Self> {
                    let mut bytes = Vec::new();
                    reader.read_to_end(&mut bytes)?;
                    Ok(Self { bytes })
                }
            }

            #[cfg(feature = "idl-build")]
            impl anchor_lang::IdlBuild for $name {
                fn create_type() -> Option<anchor_lang::idl::types::IdlTypeDef> {
                    described::$name::create_type()
                }

                fn get_full_path() -> String {
                    described::$name::get_full_path()
                }
            }
        )+

        #[cfg(feature = "idl-build")]
        mod described {
            use anchor_lang::prelude::*;

            $(
                $(#[$about])*
                #[derive(AnchorSerialize, AnchorDeserialize)]
                pub struct $name { $($fields)+ }
            )+
        }
    };
}

bodies! {
    /// Leave the running epoch; in WaitingForMembers `member` is ignored.
    WithdrawBody {
        pub epoch: u16,
        pub member: u16,
    }

    /// A member is ready.
    WarmupWitnessBody {
        pub epoch: u16,
        pub member: u16,
        pub digest: [u8; 32],
    }

    /// A witness's report; bitmaps are little-endian.
    WitnessBody {
        pub epoch: u16,
        pub height: u32,
        pub member: u16,
        pub flags: u8,
        pub at_s: u32,
        pub held: [u8; 32],
        pub heard: [u8; 32],
        pub missing: [u8; 32],
        pub broadcast_bloom: [u8; 320],
        pub results_root: [u8; 32],
        pub state_digest: [u8; 32],
        /// At most 256 bytes, never stored.
        pub metadata: Vec<u8>,
    }

    /// A witness of the previous round was silent; `height` is the running round's.
    HealthCheckBody {
        pub epoch: u16,
        pub height: u32,
        pub member: u16,
    }

    /// The first member whose work a verifier doubts; `height` is the round in which it was elected.
    AuditBody {
        pub epoch: u16,
        pub height: u32,
        pub member: u16,
        /// 65,535: it doubts nobody; then `piece` is 65,535 too, and `reason` 0.
        pub target: u16,
        pub piece: u16,
        pub reason: u16,
        /// Of the target's result, or of the verifier's own report.
        pub commitment: [u8; 32],
    }

    /// A juror's vote; `height` is the running round's.
    JudgeBody {
        pub epoch: u16,
        pub height: u32,
        pub member: u16,
        /// The place in the table of challenges.
        pub challenge: u16,
        /// 1: guilty; 0: innocent.
        pub guilty: u16,
    }

    /// A lasting source of the certified weights, as it lies in the account.
    CheckpointBody {
        pub epoch: u16,
        pub digest: [u8; 32],
        pub source: [u8; 136],
    }

    /// The member that signed two results for one round.
    ReportEquivocationBody {
        pub epoch: u16,
        pub height: u32,
        pub member: u16,
    }

    /// The rates of coming epochs; none leaves a rate unchanged.
    SetFutureEpochRatesBody {
        pub earning: Option<u64>,
        pub slashing: Option<u64>,
    }

    /// The owner's settings, each as it lies in the account; none leaves a part unchanged.
    UpdateBody {
        pub config: Option<[u8; 128]>,
        /// Without the three further sources of weights at its end. They stay if the first source stays.
        pub model: Option<[u8; 552]>,
        pub progress: Option<[u8; 16]>,
        pub metadata: Option<[u8; 360]>,
        /// Addresses of the run's nodes, padded with zeros.
        pub bootstrap: Option<Vec<[u8; 128]>>,
        /// The full digest of the weights that the source has, for a run without certified ones.
        pub first_weights: Option<[u8; 32]>,
        /// That of the record from which the update was made; if it has changed since, the update is refused.
        pub nonce: Option<u64>,
    }

    /// The client version that the run requires, padded with zeros.
    UpdateClientVersionBody {
        pub version: [u8; 96],
    }
}
