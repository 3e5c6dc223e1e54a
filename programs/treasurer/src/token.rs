//! The token program: its accounts, as far as they matter here, and calls.

use anchor_lang::prelude::*;
use anchor_lang::solana_program::instruction::Instruction;
use anchor_lang::solana_program::program::invoke_signed;

pub const TOKEN_ID: Pubkey = pubkey!("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA");
pub const ASSOCIATED_TOKEN_ID: Pubkey = pubkey!("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL");

/// Numbers of the programs' instructions.
const TRANSFER: u8 = 3;
const CLOSE_ACCOUNT: u8 = 9;
const CREATE_IDEMPOTENT: u8 = 1;

/// The state of a token account that takes and makes no payments.
const FROZEN: u8 = 2;

/// The token program. (Token-2022 is another one: its mints may keep a part of a payment.)
#[derive(Clone)]
pub struct Token;

impl Id for Token {
    fn id() -> Pubkey {
        TOKEN_ID
    }
}

/// The program of associated token accounts.
#[derive(Clone)]
pub struct AssociatedToken;

impl Id for AssociatedToken {
    fn id() -> Pubkey {
        ASSOCIATED_TOKEN_ID
    }
}

/// Tokens of one mint.
#[derive(Clone)]
pub struct TokenAccount {
    pub mint: Pubkey,
    pub owner: Pubkey,
    pub amount: u64,
    /// Whether somebody beside the owner may spend.
    pub has_delegate: bool,
    /// Whether the mint's authority has stopped all payments from and to it.
    pub is_frozen: bool,
}

impl AccountDeserialize for TokenAccount {
    fn try_deserialize_unchecked(data: &mut &[u8]) -> Result<Self> {
        let data: &[u8; 165] = (*data).try_into().map_err(|_| ErrorCode::AccountDidNotDeserialize)?;
        require!(data[108] != 0, ErrorCode::AccountNotInitialized);
        Ok(Self {
            mint: read_key(&data[..32]),
            owner: read_key(&data[32..64]),
            amount: u64::from_le_bytes(data[64..72].try_into().unwrap_or_default()),
            has_delegate: data[72..76] != [0; 4],
            is_frozen: data[108] == FROZEN,
        })
    }
}

/// A kind of token.
#[derive(Clone)]
pub struct Mint;

impl AccountDeserialize for Mint {
    fn try_deserialize_unchecked(data: &mut &[u8]) -> Result<Self> {
        let data: &[u8; 82] = (*data).try_into().map_err(|_| ErrorCode::AccountDidNotDeserialize)?;
        require!(data[45] == 1, ErrorCode::AccountNotInitialized);
        Ok(Self)
    }
}

macro_rules! accounts_of_tokens {
    ($($name:ident)+) => {
        $(
            impl AccountSerialize for $name {}

            impl Owner for $name {
                fn owner() -> Pubkey {
                    TOKEN_ID
                }
            }

            #[cfg(feature = "idl-build")]
            impl IdlBuild for $name {}

            #[cfg(feature = "idl-build")]
            impl anchor_lang::Discriminator for $name {
                const DISCRIMINATOR: &'static [u8] = &[];
            }
        )+
    };
}

accounts_of_tokens! { TokenAccount Mint }

fn read_key(bytes: &[u8]) -> Pubkey {
    bytes.try_into().unwrap_or_default()
}

/// The address of the associated token account of an owner.
pub fn get_associated_address(owner: &Pubkey, mint: &Pubkey) -> Pubkey {
    Pubkey::find_program_address(&[owner.as_ref(), TOKEN_ID.as_ref(), mint.as_ref()], &ASSOCIATED_TOKEN_ID).0
}

/// Move tokens; `authority` owns `from` and signs by its seeds.
pub fn transfer<'info>(
    from: &AccountInfo<'info>,
    to: &AccountInfo<'info>,
    authority: &AccountInfo<'info>,
    amount: u64,
    seeds: &[&[&[u8]]],
) -> Result<()> {
    let mut data = vec![TRANSFER];
    data.extend_from_slice(&amount.to_le_bytes());
    call_token(data, [from, to, authority], seeds)
}

/// Close an empty token account; `authority` owns it and signs by its seeds.
pub fn close<'info>(
    account: &AccountInfo<'info>,
    spill: &AccountInfo<'info>,
    authority: &AccountInfo<'info>,
    seeds: &[&[&[u8]]],
) -> Result<()> {
    call_token(vec![CLOSE_ACCOUNT], [account, spill, authority], seeds)
}

/// Call the token program with two writable accounts and the authority.
fn call_token<'info>(data: Vec<u8>, infos: [&AccountInfo<'info>; 3], seeds: &[&[&[u8]]]) -> Result<()> {
    let [first, second, authority] = infos;
    let accounts = vec![
        AccountMeta::new(*first.key, false),
        AccountMeta::new(*second.key, false),
        AccountMeta::new_readonly(*authority.key, true),
    ];
    let instruction = Instruction { program_id: TOKEN_ID, accounts, data };
    invoke_signed(&instruction, &infos.map(Clone::clone), seeds)?;
    Ok(())
}

/// Make the associated token account of `owner`, unless somebody made it before.
pub fn create_associated<'info>(
    payer: &AccountInfo<'info>,
    account: &AccountInfo<'info>,
    owner: &AccountInfo<'info>,
    mint: &AccountInfo<'info>,
    system: &AccountInfo<'info>,
    token: &AccountInfo<'info>,
) -> Result<()> {
    let accounts = vec![
        AccountMeta::new(*payer.key, true),
        AccountMeta::new(*account.key, false),
        AccountMeta::new_readonly(*owner.key, false),
        AccountMeta::new_readonly(*mint.key, false),
        AccountMeta::new_readonly(*system.key, false),
        AccountMeta::new_readonly(*token.key, false),
    ];
    let instruction = Instruction { program_id: ASSOCIATED_TOKEN_ID, accounts, data: vec![CREATE_IDEMPOTENT] };
    let infos = [payer, account, owner, mint, system, token].map(Clone::clone);
    invoke_signed(&instruction, &infos, &[])?;
    Ok(())
}
