"""The classes and functions that a saved model may name without the caller's trust.

An entry must be harmless whatever arguments a file gives it: it builds a module, an optimizer, a schedule, a
metric or an option, or it computes with tensors. It opens no file or connection, calls nothing but what is
listed itself, and imports nothing that an argument names. So these are not here:

- metrics that fetch a network or its weights (BERTScore, CLIPScore, FrechetInceptionDistance and others);
- hooks and summaries, which write files;
- wrappers for processes or devices (DataParallel).

Those of ``sparkdl.hf`` build models of installed packages from a configuration, which they check themselves.
"""

from __future__ import annotations

_TORCH = {
    "torch": "abs atan celu cos cosh erf exp log_softmax relu selu sigmoid sin sinh softmax sqrt square tanh",
    "torch.nn.functional": (
        "_threshold adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d alpha_dropout avg_pool1d "
        "avg_pool2d avg_pool3d batch_norm binary_cross_entropy binary_cross_entropy_with_logits celu "
        "cosine_embedding_loss cosine_similarity cross_entropy ctc_loss dropout dropout1d dropout2d "
        "dropout3d elu embedding feature_alpha_dropout gaussian_nll_loss gelu glu group_norm "
        "gumbel_softmax hardshrink hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss "
        "instance_norm interpolate kl_div l1_loss layer_norm leaky_relu linear local_response_norm "
        "log_softmax logsigmoid lp_pool1d lp_pool2d margin_ranking_loss mish mse_loss multi_margin_loss "
        "multilabel_margin_loss multilabel_soft_margin_loss nll_loss normalize one_hot pad "
        "pairwise_distance pixel_shuffle poisson_nll_loss prelu relu relu6 rms_norm rrelu "
        "scaled_dot_product_attention selu sigmoid silu smooth_l1_loss soft_margin_loss softmax softmin "
        "softplus softshrink softsign tanh tanhshrink threshold triplet_margin_loss "
        "triplet_margin_with_distance_loss"
    ),
    "torch.nn.init": (
        "constant_ dirac_ eye_ kaiming_normal_ kaiming_uniform_ normal_ ones_ orthogonal_ sparse_ "
        "trunc_normal_ uniform_ xavier_normal_ xavier_uniform_ zeros_"
    ),
    "torch.nn.modules.activation": (
        "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish "
        "MultiheadAttention PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus "
        "Softshrink Softsign Tanh Tanhshrink Threshold"
    ),
    "torch.nn.modules.adaptive": "AdaptiveLogSoftmaxWithLoss",
    "torch.nn.modules.batchnorm": (
        "BatchNorm1d BatchNorm2d BatchNorm3d LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d SyncBatchNorm"
    ),
    "torch.nn.modules.channelshuffle": "ChannelShuffle",
    "torch.nn.modules.container": "ModuleDict ModuleList ParameterDict ParameterList Sequential",
    "torch.nn.modules.conv": (
        "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LazyConv1d LazyConv2d "
        "LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d"
    ),
    "torch.nn.modules.distance": "CosineSimilarity PairwiseDistance",
    "torch.nn.modules.dropout": "AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout",
    "torch.nn.modules.flatten": "Flatten Unflatten",
    "torch.nn.modules.fold": "Fold Unfold",
    "torch.nn.modules.instancenorm": (
        "InstanceNorm1d InstanceNorm2d InstanceNorm3d LazyInstanceNorm1d LazyInstanceNorm2d "
        "LazyInstanceNorm3d"
    ),
    "torch.nn.modules.linear": "Bilinear Identity LazyLinear Linear",
    "torch.nn.modules.loss": (
        "BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CrossEntropyLoss GaussianNLLLoss "
        "HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss LinearCrossEntropyLoss MSELoss MarginRankingLoss "
        "MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss NLLLoss2d PoissonNLLLoss "
        "SmoothL1Loss SoftMarginLoss TripletMarginLoss TripletMarginWithDistanceLoss"
    ),
    "torch.nn.modules.module": "Module",
    "torch.nn.modules.normalization": "CrossMapLRN2d GroupNorm LayerNorm LocalResponseNorm RMSNorm",
    "torch.nn.modules.padding": (
        "CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d "
        "ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d "
        "ReplicationPad3d ZeroPad1d ZeroPad2d ZeroPad3d"
    ),
    "torch.nn.modules.pixelshuffle": "PixelShuffle PixelUnshuffle",
    "torch.nn.modules.pooling": (
        "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d "
        "AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d FractionalMaxPool2d FractionalMaxPool3d LPPool1d "
        "LPPool2d LPPool3d MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d"
    ),
    "torch.nn.modules.rnn": "GRU GRUCell LSTM LSTMCell RNN RNNBase RNNCell RNNCellBase",
    "torch.nn.modules.sparse": "Embedding EmbeddingBag",
    "torch.nn.modules.transformer": (
        "Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer"
    ),
    "torch.nn.modules.upsampling": "Upsample UpsamplingBilinear2d UpsamplingNearest2d",
    "torch.optim": "Adafactor Muon",
    "torch.optim._adafactor": "Adafactor",
    "torch.optim._muon": "Muon",
    "torch.optim.adadelta": "Adadelta",
    "torch.optim.adagrad": "Adagrad",
    "torch.optim.adam": "Adam",
    "torch.optim.adamax": "Adamax",
    "torch.optim.adamw": "AdamW",
    "torch.optim.asgd": "ASGD",
    "torch.optim.lbfgs": "LBFGS",
    "torch.optim.lr_scheduler": (
        "ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR ExponentialLR "
        "LambdaLR LinearLR MultiStepLR MultiplicativeLR OneCycleLR PolynomialLR ReduceLROnPlateau "
        "SequentialLR StepLR"
    ),
    "torch.optim.nadam": "NAdam",
    "torch.optim.radam": "RAdam",
    "torch.optim.rmsprop": "RMSprop",
    "torch.optim.rprop": "Rprop",
    "torch.optim.sgd": "SGD",
    "torch.optim.sparse_adam": "SparseAdam",
    "torch.optim.swa_utils": "SWALR",
}

_TORCHMETRICS = {
    "torchmetrics.aggregation": "CatMetric MaxMetric MeanMetric MinMetric RunningMean RunningSum SumMetric",
    "torchmetrics.audio.pit": "PermutationInvariantTraining",
    "torchmetrics.audio.sdr": (
        "ScaleInvariantSignalDistortionRatio SignalDistortionRatio SourceAggregatedSignalDistortionRatio"
    ),
    "torchmetrics.audio.snr": (
        "ComplexScaleInvariantSignalNoiseRatio ScaleInvariantSignalNoiseRatio SignalNoiseRatio"
    ),
    "torchmetrics.classification.accuracy": "Accuracy BinaryAccuracy MulticlassAccuracy MultilabelAccuracy",
    "torchmetrics.classification.auroc": "AUROC BinaryAUROC MulticlassAUROC MultilabelAUROC",
    "torchmetrics.classification.average_precision": (
        "AveragePrecision BinaryAveragePrecision MulticlassAveragePrecision MultilabelAveragePrecision"
    ),
    "torchmetrics.classification.calibration_error": (
        "BinaryCalibrationError CalibrationError MulticlassCalibrationError"
    ),
    "torchmetrics.classification.cohen_kappa": "BinaryCohenKappa CohenKappa MulticlassCohenKappa",
    "torchmetrics.classification.confusion_matrix": (
        "BinaryConfusionMatrix ConfusionMatrix MulticlassConfusionMatrix MultilabelConfusionMatrix"
    ),
    "torchmetrics.classification.eer": "BinaryEER EER MulticlassEER MultilabelEER",
    "torchmetrics.classification.exact_match": "ExactMatch MulticlassExactMatch MultilabelExactMatch",
    "torchmetrics.classification.f_beta": (
        "BinaryF1Score BinaryFBetaScore F1Score FBetaScore MulticlassF1Score MulticlassFBetaScore "
        "MultilabelF1Score MultilabelFBetaScore"
    ),
    "torchmetrics.classification.group_fairness": "BinaryFairness BinaryGroupStatRates",
    "torchmetrics.classification.hamming": (
        "BinaryHammingDistance HammingDistance MulticlassHammingDistance MultilabelHammingDistance"
    ),
    "torchmetrics.classification.hinge": "BinaryHingeLoss HingeLoss MulticlassHingeLoss",
    "torchmetrics.classification.jaccard": (
        "BinaryJaccardIndex JaccardIndex MulticlassJaccardIndex MultilabelJaccardIndex"
    ),
    "torchmetrics.classification.logauc": "BinaryLogAUC LogAUC MulticlassLogAUC MultilabelLogAUC",
    "torchmetrics.classification.matthews_corrcoef": (
        "BinaryMatthewsCorrCoef MatthewsCorrCoef MulticlassMatthewsCorrCoef MultilabelMatthewsCorrCoef"
    ),
    "torchmetrics.classification.negative_predictive_value": (
        "BinaryNegativePredictiveValue MulticlassNegativePredictiveValue "
        "MultilabelNegativePredictiveValue NegativePredictiveValue"
    ),
    "torchmetrics.classification.precision_fixed_recall": (
        "BinaryPrecisionAtFixedRecall MulticlassPrecisionAtFixedRecall MultilabelPrecisionAtFixedRecall "
        "PrecisionAtFixedRecall"
    ),
    "torchmetrics.classification.precision_recall": (
        "BinaryPrecision BinaryRecall MulticlassPrecision MulticlassRecall MultilabelPrecision "
        "MultilabelRecall Precision Recall"
    ),
    "torchmetrics.classification.precision_recall_curve": (
        "BinaryPrecisionRecallCurve MulticlassPrecisionRecallCurve MultilabelPrecisionRecallCurve "
        "PrecisionRecallCurve"
    ),
    "torchmetrics.classification.ranking": (
        "MultilabelCoverageError MultilabelRankingAveragePrecision MultilabelRankingLoss"
    ),
    "torchmetrics.classification.recall_fixed_precision": (
        "BinaryRecallAtFixedPrecision MulticlassRecallAtFixedPrecision MultilabelRecallAtFixedPrecision "
        "RecallAtFixedPrecision"
    ),
    "torchmetrics.classification.roc": "BinaryROC MulticlassROC MultilabelROC ROC",
    "torchmetrics.classification.sensitivity_specificity": (
        "BinarySensitivityAtSpecificity MulticlassSensitivityAtSpecificity "
        "MultilabelSensitivityAtSpecificity SensitivityAtSpecificity"
    ),
    "torchmetrics.classification.specificity": (
        "BinarySpecificity MulticlassSpecificity MultilabelSpecificity Specificity"
    ),
    "torchmetrics.classification.specificity_sensitivity": (
        "BinarySpecificityAtSensitivity MulticlassSpecificityAtSensitivity "
        "MultilabelSpecificityAtSensitivity SpecificityAtSensitivity"
    ),
    "torchmetrics.classification.stat_scores": (
        "BinaryStatScores MulticlassStatScores MultilabelStatScores StatScores"
    ),
    "torchmetrics.clustering.adjusted_mutual_info_score": "AdjustedMutualInfoScore",
    "torchmetrics.clustering.adjusted_rand_score": "AdjustedRandScore",
    "torchmetrics.clustering.calinski_harabasz_score": "CalinskiHarabaszScore",
    "torchmetrics.clustering.cluster_accuracy": "ClusterAccuracy",
    "torchmetrics.clustering.davies_bouldin_score": "DaviesBouldinScore",
    "torchmetrics.clustering.dunn_index": "DunnIndex",
    "torchmetrics.clustering.fowlkes_mallows_index": "FowlkesMallowsIndex",
    "torchmetrics.clustering.homogeneity_completeness_v_measure": (
        "CompletenessScore HomogeneityScore VMeasureScore"
    ),
    "torchmetrics.clustering.mutual_info_score": "MutualInfoScore",
    "torchmetrics.clustering.normalized_mutual_info_score": "NormalizedMutualInfoScore",
    "torchmetrics.clustering.rand_score": "RandScore",
    "torchmetrics.collections": "MetricCollection",
    "torchmetrics.detection.ciou": "CompleteIntersectionOverUnion",
    "torchmetrics.detection.diou": "DistanceIntersectionOverUnion",
    "torchmetrics.detection.giou": "GeneralizedIntersectionOverUnion",
    "torchmetrics.detection.iou": "IntersectionOverUnion",
    "torchmetrics.detection.mean_ap": "MeanAveragePrecision",
    "torchmetrics.detection.panoptic_qualities": "ModifiedPanopticQuality PanopticQuality",
    "torchmetrics.image.d_lambda": "SpectralDistortionIndex",
    "torchmetrics.image.d_s": "SpatialDistortionIndex",
    "torchmetrics.image.ergas": "ErrorRelativeGlobalDimensionlessSynthesis",
    "torchmetrics.image.psnr": "PeakSignalNoiseRatio",
    "torchmetrics.image.psnrb": "PeakSignalNoiseRatioWithBlockedEffect",
    "torchmetrics.image.qnr": "QualityWithNoReference",
    "torchmetrics.image.rase": "RelativeAverageSpectralError",
    "torchmetrics.image.rmse_sw": "RootMeanSquaredErrorUsingSlidingWindow",
    "torchmetrics.image.sam": "SpectralAngleMapper",
    "torchmetrics.image.scc": "SpatialCorrelationCoefficient",
    "torchmetrics.image.ssim": "MultiScaleStructuralSimilarityIndexMeasure StructuralSimilarityIndexMeasure",
    "torchmetrics.image.tv": "TotalVariation",
    "torchmetrics.image.uqi": "UniversalImageQualityIndex",
    "torchmetrics.image.vif": "VisualInformationFidelity",
    "torchmetrics.multimodal.lve": "LipVertexError",
    "torchmetrics.nominal.cramers": "CramersV",
    "torchmetrics.nominal.fleiss_kappa": "FleissKappa",
    "torchmetrics.nominal.pearson": "PearsonsContingencyCoefficient",
    "torchmetrics.nominal.theils_u": "TheilsU",
    "torchmetrics.nominal.tschuprows": "TschuprowsT",
    "torchmetrics.regression.concordance": "ConcordanceCorrCoef",
    "torchmetrics.regression.cosine_similarity": "CosineSimilarity",
    "torchmetrics.regression.crps": "ContinuousRankedProbabilityScore",
    "torchmetrics.regression.csi": "CriticalSuccessIndex",
    "torchmetrics.regression.explained_variance": "ExplainedVariance",
    "torchmetrics.regression.js_divergence": "JensenShannonDivergence",
    "torchmetrics.regression.kendall": "KendallRankCorrCoef",
    "torchmetrics.regression.kl_divergence": "KLDivergence",
    "torchmetrics.regression.log_cosh": "LogCoshError",
    "torchmetrics.regression.log_mse": "MeanSquaredLogError",
    "torchmetrics.regression.mae": "MeanAbsoluteError",
    "torchmetrics.regression.mape": "MeanAbsolutePercentageError",
    "torchmetrics.regression.minkowski": "MinkowskiDistance",
    "torchmetrics.regression.mse": "MeanSquaredError",
    "torchmetrics.regression.nrmse": "NormalizedRootMeanSquaredError",
    "torchmetrics.regression.pearson": "PearsonCorrCoef",
    "torchmetrics.regression.r2": "R2Score",
    "torchmetrics.regression.rse": "RelativeSquaredError",
    "torchmetrics.regression.spearman": "SpearmanCorrCoef",
    "torchmetrics.regression.symmetric_mape": "SymmetricMeanAbsolutePercentageError",
    "torchmetrics.regression.tweedie_deviance": "TweedieDevianceScore",
    "torchmetrics.regression.wmape": "WeightedMeanAbsolutePercentageError",
    "torchmetrics.retrieval.auroc": "RetrievalAUROC",
    "torchmetrics.retrieval.average_precision": "RetrievalMAP",
    "torchmetrics.retrieval.fall_out": "RetrievalFallOut",
    "torchmetrics.retrieval.hit_rate": "RetrievalHitRate",
    "torchmetrics.retrieval.ndcg": "RetrievalNormalizedDCG",
    "torchmetrics.retrieval.precision": "RetrievalPrecision",
    "torchmetrics.retrieval.precision_recall_curve": (
        "RetrievalPrecisionRecallCurve RetrievalRecallAtFixedPrecision"
    ),
    "torchmetrics.retrieval.r_precision": "RetrievalRPrecision",
    "torchmetrics.retrieval.recall": "RetrievalRecall",
    "torchmetrics.retrieval.reciprocal_rank": "RetrievalMRR",
    "torchmetrics.segmentation.dice": "DiceScore",
    "torchmetrics.segmentation.generalized_dice": "GeneralizedDiceScore",
    "torchmetrics.segmentation.hausdorff_distance": "HausdorffDistance",
    "torchmetrics.segmentation.mean_iou": "MeanIoU",
    "torchmetrics.shape.procrustes": "ProcrustesDisparity",
    "torchmetrics.text.bleu": "BLEUScore",
    "torchmetrics.text.cer": "CharErrorRate",
    "torchmetrics.text.chrf": "CHRFScore",
    "torchmetrics.text.edit": "EditDistance",
    "torchmetrics.text.eed": "ExtendedEditDistance",
    "torchmetrics.text.mer": "MatchErrorRate",
    "torchmetrics.text.perplexity": "Perplexity",
    "torchmetrics.text.squad": "SQuAD",
    "torchmetrics.text.ter": "TranslationEditRate",
    "torchmetrics.text.wer": "WordErrorRate",
    "torchmetrics.text.wil": "WordInfoLost",
    "torchmetrics.text.wip": "WordInfoPreserved",
    "torchmetrics.wrappers.bootstrapping": "BootStrapper",
    "torchmetrics.wrappers.classwise": "ClasswiseWrapper",
    "torchmetrics.wrappers.minmax": "MinMaxMetric",
    "torchmetrics.wrappers.multioutput": "MultioutputWrapper",
    "torchmetrics.wrappers.multitask": "MultitaskWrapper",
    "torchmetrics.wrappers.running": "Running",
    # what torchmetrics itself exports, such as torchmetrics.RetrievalMAP
    "torchmetrics.audio._deprecated": (
        "_PermutationInvariantTraining _ScaleInvariantSignalDistortionRatio "
        "_ScaleInvariantSignalNoiseRatio _SignalDistortionRatio _SignalNoiseRatio"
    ),
    "torchmetrics.detection._deprecated": "_ModifiedPanopticQuality _PanopticQuality",
    "torchmetrics.image._deprecated": (
        "_ErrorRelativeGlobalDimensionlessSynthesis _MultiScaleStructuralSimilarityIndexMeasure "
        "_PeakSignalNoiseRatio _RelativeAverageSpectralError _RootMeanSquaredErrorUsingSlidingWindow "
        "_SpectralAngleMapper _SpectralDistortionIndex _StructuralSimilarityIndexMeasure _TotalVariation "
        "_UniversalImageQualityIndex"
    ),
    "torchmetrics.retrieval._deprecated": (
        "_RetrievalFallOut _RetrievalHitRate _RetrievalMAP _RetrievalMRR _RetrievalNormalizedDCG "
        "_RetrievalPrecision _RetrievalPrecisionRecallCurve _RetrievalRPrecision _RetrievalRecall "
        "_RetrievalRecallAtFixedPrecision"
    ),
    "torchmetrics.text._deprecated": (
        "_BLEUScore _CHRFScore _CharErrorRate _ExtendedEditDistance _MatchErrorRate _Perplexity _SQuAD "
        "_TranslationEditRate _WordErrorRate _WordInfoLost _WordInfoPreserved"
    ),
}

_SPARKDL = {
    "sparkdl.wire.codec": "Int8 TopK",
    "sparkdl.data.augment": "Normalize RandomCrop RandomFlip",
    "sparkdl.data.columns": "Column",
    "sparkdl.data.images": "ImageFormat",
    "sparkdl.hf.heads": "Embedder Generator",
    "sparkdl.keyed.bloom": "CountingBloom",
    "sparkdl.hf.rebuilt": "adapted pretrained",
    "sparkdl.metrics.loss": "Loss",
    "sparkdl.metrics.ranking": "HitRatio MAP MRR NDCG Recall",
    "sparkdl.nn.models.anomaly": "AnomalyDetector",
    "sparkdl.nn.models.autoencoder": "Autoencoder ConvAutoencoder",
    "sparkdl.nn.models.convlstm": "ConvLSTM ConvLSTMCell",
    "sparkdl.nn.models.deepfm": "DeepFM pairwise_products",
    "sparkdl.nn.models.din": "DIN",
    "sparkdl.nn.models.dlrm": "DLRM",
    "sparkdl.nn.embedding": "EmbeddingBagVariable EmbeddingVariable",
    "sparkdl.nn.models.forecaster": "Forecaster Pinball absolute_error",
    "sparkdl.nn.models.gru4rec": "GRU4Rec bpr sampled_softmax top1",
    "sparkdl.nn.models.inception": "GoogLeNet Inception googlenet_loss",
    "sparkdl.nn.int8": "Int8Linear",
    "sparkdl.nn.models.knrm": "KNRM",
    "sparkdl.nn.models.lenet": "LeNet5",
    "sparkdl.distill.losses": "KD LogitMatching",
    "sparkdl.nn.losses": "binary_cross_entropy cross_entropy squared_error",
    "sparkdl.nn.models.mlp": "MLP",
    "sparkdl.nn.models.nbeats": "InterpretableNBeats NBeats",
    "sparkdl.nn.models.neuralcf": "NeuralCF",
    "sparkdl.nn.models.parts": "FieldEmbedding perceptron",
    "sparkdl.nn.models.patch_transformer": "PatchTransformer",
    "sparkdl.nn.models.recurrent": "RecurrentClassifier",
    "sparkdl.nn.models.resnet": "ResNet ResNet20",
    "sparkdl.nn.models.seq2seq": "Seq2Seq sequence_loss",
    "sparkdl.saved.source": "sequential",
    "sparkdl.nn.models.sparse": "SparseLinear SparseMLP",
    "sparkdl.nn.models.ssd": "SSD SSDHead SSDLoss",
    "sparkdl.nn.models.tabular": "Tabular",
    "sparkdl.nn.models.tcn": "TCN",
    "sparkdl.nn.models.textcnn": "TextCNN",
    "sparkdl.nn.models.top_k": "Recommender TopK",
    "sparkdl.nn.models.transformer": "TransformerClassifier",
    "sparkdl.nn.models.two_tower": "Tower TwoTower in_batch_softmax in_batch_step",
    "sparkdl.nn.models.variables": "AdaptiveVariable DynamicDimensionVariable MultiHashVariable",
    "sparkdl.nn.models.vgg": "VGG",
    "sparkdl.nn.models.wide_and_deep": "WideAndDeep",
    "sparkdl.optim.adagrad_decay": "AdagradDecay",
    "sparkdl.optim.clip": "ClipByNorm ClipByValue",
    "sparkdl.optim.ftrl": "Ftrl",
    "sparkdl.optim.groups": "ParamGroup",
    "sparkdl.optim.lamb": "LAMB",
    "sparkdl.optim.lars": "LARS",
    "sparkdl.optim.lbfgs": "LBFGS",
    "sparkdl.optim.regularize": "Penalty",
    "sparkdl.optim.staleness": "Staleness",
    "sparkdl.train.options.averaging": "EMA SWA",
    "sparkdl.train.options.elastic": "Elastic",
    "sparkdl.train.options.local_steps": "LocalSteps",
    "sparkdl.train.options.schedule": "PerEpoch PerIteration _Sequence",
    "sparkdl.train.options.stragglers": "DropStragglers",
    "sparkdl.train.options.triggers": (
        "EveryEpoch EveryIterations EverySeconds MaxEpoch MaxIteration MaxScore MaxSeconds MinLoss "
        "MinScore Plateaued _Both _Either _Not"
    ),
}

_PUBLIC = {"torch.nn": "torch.nn.modules.", "torch.optim": "torch.optim."}
"""Modules that export the classes of their submodules: ``torch.nn:Linear`` is read, too."""

NAMES: dict[str, tuple[str, ...]] = {
    module: tuple(names.split()) for module, names in {**_TORCH, **_TORCHMETRICS, **_SPARKDL}.items()
}
"""What is listed, by module."""

LISTED = frozenset(f"{module}:{name}" for module, names in NAMES.items() for name in names) | frozenset(
    f"{public}:{name}"
    for public, prefix in _PUBLIC.items()
    for module, names in NAMES.items()
    for name in names
    if module.startswith(prefix)
)
"""What is listed, as paths such as ``torch.nn.modules.linear:Linear``."""
