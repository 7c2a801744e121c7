"""Accepted SHA-256 digests of every file, by its path in the data folder: what a download gives comes first."""

SHA256: dict[str, tuple[str, ...]] = {
    # The publisher's own bytes, as several independent records of the digest agree.
    "mnist/train-images-idx3-ubyte.gz": ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",),
    "mnist/train-labels-idx1-ubyte.gz": ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",),
    "mnist/t10k-images-idx3-ubyte.gz": ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",),
    "mnist/t10k-labels-idx1-ubyte.gz": ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",),
    "fashion-mnist/train-images-idx3-ubyte.gz": ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",),
    "fashion-mnist/train-labels-idx1-ubyte.gz": ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",),
    "fashion-mnist/t10k-images-idx3-ubyte.gz": ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",),
    "fashion-mnist/t10k-labels-idx1-ubyte.gz": ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",),
    "bandits/mushroom/agaricus-lepiota.data": ("e65d082030501a3ebcbcd7c9f7c71aa9d28fdfff463bf4cf4716a3fe13ac360e",),
    "bandits/adult/adult.data": ("5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",),
    "bandits/adult/adult.test": ("a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",),
    "sarcos/sarcos_inv_test.mat": ("161a59b5c3b4f4b404584323f181607b2acbe620eb134dc720760dc3f38f5cec",),
    # The bytes at one commit of the repository that the registry names.
    "uci/bostonHousing/data.txt": ("baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",),
    "uci/concrete/data.txt": ("43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de",),
    "uci/energy/data.txt": ("7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950",),
    "uci/kin8nm/data.txt": ("a694ce0c7a21390f2bd2a205c36f2482cd974637a207038696716e22f3bbe810",),
    "uci/naval-propulsion-plant/data.txt": ("de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6",),
    "uci/power-plant/data.txt": ("daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31",),
    "uci/protein-tertiary-structure/data.txt": ("d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727",),
    "uci/wine-quality-red/data.txt": ("3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1",),
    "uci/yacht/data.txt": ("00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1",),
    "uci-extra/energy/ENB2012_data.xlsx": ("ce80fba0fdf4be0e2f2e709fd01ff9c807246947fe666e18710d5105af7970b6",),
    "bandits/covertype/test.csv.gz": ("d1683af154f7279cfb7221e813d44d904346d4965779c56bfbe7c5c74cebf8fd",),
    "bandits/jester/jester-data-1.zip": ("4adf783a1e03bd3be063315cb6e0a064fe63e983fd289d01b8e401a8e6c41e5f",),
    "bandits/financial/raw_stock_contexts": ("cf468e5aae150dfd5c6b096464cd11e85f8b01198f8e49bedb941948850a6315",),
    "jura/prediction.dat": ("ac09ef5312f2b8864abad54908eb920692b22a75fcad93bea2860fd72c38016e",),
    "jura/validation.dat": ("c86380abc391c731fafd0ba778eaacda4bfeaa72b71d5723821acc6d9a13d3b2",),
    # Copies: complete and correct, but that the publisher serves just these bytes is not confirmed.
    "libsvm/australian_scale": ("86799bcc4dbcd41929a514fa181d1c1a40e01f009dee139d4141a194d7ecd9e3",),
    "libsvm/breast-cancer_scale": ("8fe6bce62147e0715a192378d29acf839b4a8a71d75ae4c88245a3526c20a6e4",),
    "bandits/shuttle/shuttle.trn.Z": ("ffd2cbf221d4982ccc77c674621c23291447f3fd9484c00d8078858965e0e7ed",),
    "bandits/shuttle/shuttle.tst": ("4d06df909e29d5f908fcbce4e003c8038a7bb5230b57820b4b87be6f38b1c747",),
    "text/warpeace_input.txt": ("fb66ba999dafe24017cdd59e04c56d385a9c8466993d374fd4c6f08b2142985e",),
    # The published file, then the same text compressed again without a time stamp.
    "usps/zip.train.gz": (
        "66ebf231ab51f2cf6ac1a892d0f98ccffee1079d7a5db638c1f11f366046ca16",
        "51bf769d7e7eab6126d1a01c51073c77713296e8d65c13de6bd8020e774d8884",
    ),
    "usps/zip.test.gz": (
        "8dacc3c6e136af6c3488de9e5113a7daf140c8c2f1f0b61c54ee02f03f1a962f",
        "0e25acc00463f1e673d7cc48aeb8a63216efc227947655c2195323d90553642b",
    ),
}
