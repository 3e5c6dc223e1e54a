//! Messages and their bodies: the fields of `psyche.core.state.messages` in order, as Borsh packs them.
//!
//! A body states its kind nowhere; the kind's number comes with it. Reading checks lengths and presence bytes; what
//! the values must be is up to the rules. Texts and parts of the state are the bytes that the state holds.

use crate::bits::Bitmap;
use crate::enums::witness_flag;
use crate::hash::Hash;
use crate::limits::*;

/// A body that is no message of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The hash of the armed slot (E5, E6).
#[derive(Clone, Copy)]
pub enum Entropy<'a> {
    /// Not available yet.
    None,
    /// No longer available (E2).
    Expired,
    Hash(&'a Hash),
}

/// Make the transition that time or the record requires (T2, T3).
pub struct Tick<'a> {
    pub entropy: Entropy<'a>,
}

/// Ask for a place in the next formation; the sender is the signer (M1 to M3, M5).
pub struct Join<'a> {
    pub p2p: &'a Hash,
    pub expires_unix: u64,
}

/// Leave the running epoch; in WaitingForMembers, take back the join (M4; `member` is ignored there).
pub struct Withdraw {
    pub epoch: u16,
    pub member: u16,
}

/// Report ready in Warmup, with the full digest of the loaded weights (S8).
pub struct WarmupWitness<'a> {
    pub epoch: u16,
    pub member: u16,
    pub digest: &'a Hash,
}

/// A witness's report on the attested round (W1).
pub struct WitnessMessage<'a> {
    pub epoch: u16,
    pub height: u32,
    pub member: u16,
    pub flags: u8,
    pub at_s: u32,
    pub held: Bitmap,
    pub heard: Bitmap,
    pub missing: Bitmap,
    pub broadcast_bloom: &'a [u8; BLOOM_BYTES],
    pub results_root: &'a Hash,
    pub state_digest: &'a Hash,
    /// Never stored.
    pub metadata: &'a [u8],
}

/// Accuse a silent witness of the previous round; `height` is the running round's (H4).
pub struct HealthCheck {
    pub epoch: u16,
    pub height: u32,
    pub member: u16,
}

/// Name a lasting source of the certified weights; `epoch` is the epoch that certified them (S10).
pub struct NameCheckpoint<'a> {
    pub epoch: u16,
    pub digest: &'a Hash,
    pub source: &'a [u8; CHECKPOINT_BYTES],
}

/// Eject a member that signed two results for one round; the backend has checked both signatures (R7).
pub struct ReportEquivocation {
    pub epoch: u16,
    pub height: u32,
    pub member: u16,
}

/// A verifier's first doubt about a member, or none; `height` is the round in which it was elected (V9).
pub struct ReportAudit<'a> {
    pub epoch: u16,
    pub height: u32,
    pub member: u16,
    /// NOBODY: it found nothing.
    pub target: u16,
    pub piece: u16,
    pub reason: u16,
    /// Of the target's result, or of the verifier's own report.
    pub commitment: &'a Hash,
}

/// A juror's vote on an open challenge, by its number; `height` is the running round's (V12).
pub struct JudgeChallenge {
    pub epoch: u16,
    pub height: u32,
    pub member: u16,
    pub challenge: u16,
    pub is_guilty: bool,
}

/// Shift the run's clocks after the coordinator was down for `gap_s` seconds (K2).
pub struct Recover {
    pub gap_s: u64,
    pub reconnect_s: u64,
}

/// Set the earning and slashing rates of coming epochs; None leaves a rate unchanged (M7).
pub struct SetRates {
    pub earning: Option<u64>,
    pub slashing: Option<u64>,
}

/// Take earnings out of the record in order to pay them: all of the claims, or none (M11).
pub struct Collect<'a> {
    pub claims: Claims<'a>,
}

/// Change the owner's settings; None leaves a part unchanged (P9).
pub struct Update<'a> {
    pub config: Option<&'a [u8; CONFIG_BYTES]>,
    pub model: Option<&'a [u8; MODEL_BYTES]>,
    pub progress: Option<&'a [u8; PROGRESS_BYTES]>,
    pub metadata: Option<&'a [u8; RUN_METADATA_BYTES]>,
    /// Addresses of 128 bytes each, one after another.
    pub bootstrap: Option<&'a [u8]>,
    /// The full digest of the weights that the source has, for a run without certified ones (S11).
    pub first_weights: Option<&'a Hash>,
    /// That of the record from which the update was made; if it has changed since, the update is refused.
    pub nonce: Option<u64>,
}

/// Set the client version that the run requires, while it is paused or new (P9).
pub struct UpdateClientVersion<'a> {
    pub version: &'a [u8; CLIENT_VERSION_BYTES],
}

/// A message to the coordinator.
pub enum Message<'a> {
    Tick(Tick<'a>),
    Join(Join<'a>),
    /// Give up the sender's slot; a member of the running epoch withdraws with it (M4).
    LeaveRun,
    Withdraw(Withdraw),
    WarmupWitness(WarmupWitness<'a>),
    Witness(WitnessMessage<'a>),
    HealthCheck(HealthCheck),
    Checkpoint(NameCheckpoint<'a>),
    ReportEquivocation(ReportEquivocation),
    /// Pause the run: at once before an epoch's first round, otherwise after its drain and Cooldown (P4).
    Pause,
    /// Resume a paused run, or start a new one; everybody must join again (P4).
    Resume,
    Recover(Recover),
    /// Free the slot that has been idle longest, at least a whole epoch (M4).
    ReclaimSlot,
    SetRates(SetRates),
    Collect(Collect<'a>),
    Update(Update<'a>),
    UpdateClientVersion(UpdateClientVersion<'a>),
    ReportAudit(ReportAudit<'a>),
    JudgeChallenge(JudgeChallenge),
}

/// Read the body of the kind with this number (`psyche.core.rules.apply.KINDS`), to its last byte.
///
/// # Errors
/// No kind has the number, or the body is not one of this kind.
pub fn read(number: u8, body: &[u8]) -> Result<Message<'_>, Malformed> {
    let mut reader = Reader { rest: body };
    let message = read_kind(number, &mut reader)?;
    reader.rest.is_empty().then_some(message).ok_or(Malformed)
}

fn read_kind<'a>(number: u8, from: &mut Reader<'a>) -> Result<Message<'a>, Malformed> {
    Ok(match number {
        1 => Message::Tick(Tick { entropy: from.entropy()? }),
        2 => Message::Join(Join { p2p: from.bytes()?, expires_unix: from.u64()? }),
        3 => Message::LeaveRun,
        4 => Message::Withdraw(Withdraw { epoch: from.u16()?, member: from.u16()? }),
        5 => Message::WarmupWitness(WarmupWitness { epoch: from.u16()?, member: from.u16()?, digest: from.bytes()? }),
        6 => Message::Witness(from.witness()?),
        7 => Message::HealthCheck(HealthCheck { epoch: from.u16()?, height: from.u32()?, member: from.u16()? }),
        8 => Message::Checkpoint(NameCheckpoint { epoch: from.u16()?, digest: from.bytes()?, source: from.bytes()? }),
        9 => Message::ReportEquivocation(ReportEquivocation {
            epoch: from.u16()?,
            height: from.u32()?,
            member: from.u16()?,
        }),
        10 => Message::Pause,
        11 => Message::Resume,
        12 => Message::Recover(Recover { gap_s: from.u64()?, reconnect_s: from.u64()? }),
        13 => Message::ReclaimSlot,
        14 => Message::SetRates(SetRates { earning: from.option(Reader::u64)?, slashing: from.option(Reader::u64)? }),
        15 => Message::Collect(Collect { claims: from.claims()? }),
        16 => Message::Update(from.update()?),
        17 => Message::UpdateClientVersion(UpdateClientVersion { version: from.bytes()? }),
        18 => Message::ReportAudit(ReportAudit {
            epoch: from.u16()?,
            height: from.u32()?,
            member: from.u16()?,
            target: from.u16()?,
            piece: from.u16()?,
            reason: from.u16()?,
            commitment: from.bytes()?,
        }),
        19 => Message::JudgeChallenge(from.judgement()?),
        _ => return Err(Malformed),
    })
}

/// The rest of a body. Every method takes its bytes from the front, or fails if there are too few.
#[derive(Clone)]
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn bytes<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let (found, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(found)
    }

    fn many(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        if len > self.rest.len() {
            return Err(Malformed);
        }
        let (found, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(found)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.bytes().copied().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.bytes().copied().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.bytes().copied().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.bytes().copied().map(u64::from_le_bytes)
    }

    fn bitmap(&mut self) -> Result<Bitmap, Malformed> {
        self.bytes().map(Bitmap::from_bytes)
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Malformed>) -> Result<Option<T>, Malformed> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(Malformed),
        }
    }

    fn entropy(&mut self) -> Result<Entropy<'a>, Malformed> {
        match self.u8()? {
            0 => Ok(Entropy::None),
            1 => Ok(Entropy::Expired),
            2 => self.bytes().map(Entropy::Hash),
            _ => Err(Malformed),
        }
    }

    fn witness(&mut self) -> Result<WitnessMessage<'a>, Malformed> {
        let message = WitnessMessage {
            epoch: self.u16()?,
            height: self.u32()?,
            member: self.u16()?,
            flags: self.u8()?,
            at_s: self.u32()?,
            held: self.bitmap()?,
            heard: self.bitmap()?,
            missing: self.bitmap()?,
            broadcast_bloom: self.bytes()?,
            results_root: self.bytes()?,
            state_digest: self.bytes()?,
            metadata: self.metadata()?,
        };
        let known = witness_flag::COMPLETE | witness_flag::FULL_DIGEST | witness_flag::NO_DIGEST;
        (message.flags & !known == 0).then_some(message).ok_or(Malformed)
    }

    fn judgement(&mut self) -> Result<JudgeChallenge, Malformed> {
        let (epoch, height, member, challenge) = (self.u16()?, self.u32()?, self.u16()?, self.u16()?);
        let guilty = self.u16()?;
        let is_vote = usize::from(challenge) < MAX_CHALLENGES && guilty <= 1;
        let message = JudgeChallenge { epoch, height, member, challenge, is_guilty: guilty == 1 };
        is_vote.then_some(message).ok_or(Malformed)
    }

    fn metadata(&mut self) -> Result<&'a [u8], Malformed> {
        match self.u32()? as usize {
            len if len <= METADATA_BYTES => self.many(len),
            _ => Err(Malformed),
        }
    }

    fn claims(&mut self) -> Result<Claims<'a>, Malformed> {
        let len = self.u32()? as usize;
        if !(1..=MAX_CLAIMS).contains(&len) {
            return Err(Malformed);
        }
        let claims = Claims { reader: self.clone(), len };
        for _ in 0..len {
            self.claim()?;
        }
        Ok(claims)
    }

    fn claim(&mut self) -> Result<Claim<'a>, Malformed> {
        Ok((self.bytes()?, self.option(Reader::u64)?))
    }

    fn update(&mut self) -> Result<Update<'a>, Malformed> {
        Ok(Update {
            config: self.option(Reader::bytes)?,
            model: self.option(Reader::bytes)?,
            progress: self.option(Reader::bytes)?,
            metadata: self.option(Reader::bytes)?,
            bootstrap: self.option(Reader::bootstrap)?,
            first_weights: self.option(Reader::bytes)?,
            nonce: self.option(Reader::u64)?,
        })
    }

    fn bootstrap(&mut self) -> Result<&'a [u8], Malformed> {
        match self.u32()? as usize {
            len if len <= MAX_BOOTSTRAP => self.many(len * BOOTSTRAP_BYTES),
            _ => Err(Malformed),
        }
    }
}

/// A signer and the amount that is taken; None takes all earnings, even if there are none.
pub type Claim<'a> = (&'a Hash, Option<u64>);

/// The claims of one collection, in their order.
#[derive(Clone)]
pub struct Claims<'a> {
    reader: Reader<'a>,
    len: usize,
}

impl<'a> Iterator for Claims<'a> {
    type Item = Claim<'a>;

    fn next(&mut self) -> Option<Claim<'a>> {
        self.len = self.len.checked_sub(1)?;
        self.reader.claim().ok() // the claims were read once already
    }
}

#[cfg(test)]
mod tests;
